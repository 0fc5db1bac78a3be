/** Types of `callslip.js`, which follows sessions and topics of a Callslip server. */

export type Status = "closed" | "connecting" | "resuming" | "live" | "waiting" | "refused";
export type TopicName = "sessions" | "inbox" | "commands";

export type State =
  | "queued" | "awaiting_approval" | "running"
  | "completed" | "failed" | "denied" | "cancelled" | "expired" | "lost";

interface Common {
  id: number;
  at?: number;
  turn?: string;
}
export interface Message extends Common {
  type: "message";
  role: "user" | "assistant" | string;
  content: string;
  messageId?: string;
  streaming?: boolean;
  blocks?: unknown;
}
export interface Thought extends Common {
  type: "thought";
  content: string;
  messageId?: string;
  streaming?: boolean;
}
export interface ToolCall extends Common {
  type: "tool_call";
  callId: string;
  toolCallId: string;
  status: State;
  toolName?: string;
  rawToolName?: string;
  title?: string;
  kind?: string;
  rawInput?: unknown;
  inputText?: string;
  content?: unknown;
  locations?: unknown;
  output?: unknown;
  outputText?: string;
  progress?: unknown;
  error?: unknown;
  reason?: string;
  exitStatus?: unknown;
  truncated?: boolean;
  /** The full value of fields that are shortened: of the output, unless it names other fields. */
  blob?: { hash: string; size: number; media?: string; fields?: string[] };
  scope?: "turn" | "detached" | string;
  approval?: string;
  startedAt?: number;
  endedAt?: number;
  late?: number;
}
export interface PermissionRequest extends Common {
  type: "permission_request";
  /** The id of the request in the protocol of the agent, which may be used again, or else the approvalId. */
  requestId: string | number;
  /** The id by which the request is answered. */
  approvalId: string;
  callId: string;
  toolCallId?: string;
  state?: string;
  toolName?: string;
  description?: string;
  options?: unknown[];
  rawInput?: unknown;
  schema?: unknown;
  expiresAt?: number;
  /** Where to answer, if an answer from here would not reach the agent. */
  answerAt?: string;
  responseOption?: string;
  /** The approved arguments, if they differ from the requested ones. */
  responseInput?: unknown;
  responseTime?: number;
  by?: string;
  reason?: string;
}
export interface Plan extends Common {
  type: "plan";
  entries: unknown[];
}
export interface ModeChange extends Common {
  type: "mode_change";
  previousModeId: string;
  newModeId: string;
}
export interface Meta extends Common {
  type: "meta";
  [name: string]: unknown;
}
/** A notice of the agent to its user, for example a warning. */
export interface Notice extends Common {
  type: "notice";
  content: string;
  severity?: string;
  details?: unknown;
}
export type Entry = Message | Thought | ToolCall | PermissionRequest | Plan | ModeChange | Meta | Notice;

export type Patch =
  | { op: "put"; entry: Entry }
  | { op: "set"; id: number; fields: Record<string, unknown> }
  | { op: "append"; id: number; field: string; offset: number; text: string };

export interface Session {
  name: string;
  seq: number;
  info: Record<string, unknown>;
  entries: Map<number, Entry>;
}

export interface Options {
  /** The server's base URL; "" is the origin of the page. */
  url?: string;
  sessions?: string[];
  topics?: TopicName[];
  /** A bearer token. A page of the server itself uses a cookie instead. */
  token?: string;
  /** How many of a session's newest entries the first snapshot contains. */
  limit?: number;
  /** Reconnect after this many ms without data. The server sends a heartbeat every 15 s. */
  silenceTimeout?: number;
  /** "gone": a session does not exist (any more). The other sessions are still followed. */
  onChange?: (event: "snapshot" | "patches" | "topic" | "row" | "gone", update: any, client: Callslip) => void;
  onStatus?: (status: Status, client: Callslip) => void;
  fetch?: typeof fetch;
}

export class Callslip {
  constructor(options?: Options);
  /** The followed sessions. */
  readonly names: string[];
  onChange: NonNullable<Options["onChange"]>;
  onStatus: NonNullable<Options["onStatus"]>;
  readonly sessions: Map<string, Session>;
  readonly topics: Map<TopicName, Map<string, Record<string, unknown>>>;
  readonly cursor: string;
  readonly status: Status;
  /** Why the connection failed. `status` is the HTTP status, if there was a response. */
  readonly error?: Error & { status?: number };
  /** Follow until `close()`, or until the server refuses the connection. */
  open(): Promise<void>;
  close(): void;
  /** Replace the followed sessions. */
  follow(sessions: string[]): void;
  /** Reconnect at once if the server has been silent, for example after the computer slept. */
  nudge(): void;
}

export interface Frame {
  id?: string;
  event?: string;
  data?: string;
}
export function apply(session: Session, patch: Patch): void;
export function frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame>;
