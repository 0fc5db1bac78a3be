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
  namesMessage?: boolean;
}
export interface Thought extends Common {
  type: "thought";
  content: string;
  messageId?: string;
  streaming?: boolean;
  namesMessage?: boolean;
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
  /** The full output, if `output` is only its beginning. `fields` are set if it has more or other fields. */
  blob?: { hash: string; size: number; media?: string; fields?: string[] };
  /** The full content, if `content` is only its beginning. */
  contentBlob?: { hash: string; size: number; media?: string; fields?: string[] };
  scope?: "turn" | "detached" | string;
  approval?: string;
  startedAt?: number;
  endedAt?: number;
  report?: { seq: number; text: string };
  late?: number;
}
export interface PermissionRequest extends Common {
  type: "permission_request";
  /** The id of the request in the protocol of the agent, which may be used again. */
  requestId: string | number;
  /** The id by which the request is answered; without it, requestId is. */
  approvalId?: string;
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

/** A command in a message of the format `shell`. */
export interface ShellCommand {
  type: "tool";
  command: string;
  /** The producer's id, unique in its message: `cmd-0-0` may be in every message. */
  commandId: string;
  /** The id of the call, unique in the ledger. */
  callslip_id?: string;
  toolStatus: "queued" | "running" | "completed";
  /** The result, when the command has ended. */
  content?: string;
  isError?: boolean;
}
export type ShellPart = ShellCommand | { type: "text" | "reasoning"; content: string };
export interface ShellMessage {
  id: string;
  role: "user" | "assistant";
  parts: ShellPart[];
  content?: string;
}
interface ShellCommandIds {
  command: string;
  commandId: string;
  callslip_id?: string;
}
export type ShellEvent =
  | { type: "text" | "reasoning"; content: string }
  | (ShellCommandIds & { type: "tool-call" | "tool-start" })
  | (ShellCommandIds & { type: "tool-result"; result: string; isError?: boolean })
  | { type: "done"; reason?: string }
  | { type: "error"; error: string }
  | { type: "restart" };

/** The messages of a session in the format `shell`: their parts, and the state of each command by message and id. */
export class ShellMessages {
  readonly format: "shell";
  readonly messages: Map<string, ShellMessage>;
  /** Replace everything by a history: the `messages` of `GET /v1/sessions/{session}?format=shell`. */
  load(messages: ShellMessage[]): void;
  /** Begin the message that the following events fill, for each connection to a stream. */
  begin(message?: string): void;
  /** Apply an event of a live stream and return the part that it changed. */
  apply(event: ShellEvent): ShellPart | undefined;
  /** Return a command by its message and its `commandId` or `callslip_id`. */
  command(message: string, id: string): ShellCommand | undefined;
  /** Return all commands, in order. */
  commands(): (ShellCommand & { message: string })[];
}

interface ExecutionIds {
  /** The position in the timeline: the id of the entry. */
  seq: number;
  /** The producer's id; it may be used again after another message. */
  execution_id: string;
  /** The id of the call, unique in the ledger. */
  callslip_id?: string;
  call_id?: string;
}
/** An act with its observe, if it has ended. */
export interface Execution extends ExecutionIds {
  type: "execution";
  /** The user's message before it, `msg-` and its seq; "" if there is none. */
  message: string;
  toolName: string;
  toolInput: unknown;
  status: "running" | "completed" | "failed" | string;
  startTime: number;
  endTime: number | null;
  toolOutput?: unknown;
  isError?: boolean;
  duration_ms?: number;
  truncated?: boolean;
  size?: number;
}
export interface TimelineText {
  type: "user_message" | "assistant_message" | "thought";
  seq: number;
  content: string;
  message_id?: string;
}
export type TimelineItem = Execution | TimelineText;
export type TimelineHistoryItem =
  | TimelineText
  | (ExecutionIds & { type: "act"; toolName: string; toolInput: unknown;
      execution: { status: string; startTime: number; endTime: number | null } })
  | (ExecutionIds & { type: "observe"; toolName: string; toolOutput: unknown; isError: boolean; duration_ms?: number;
      truncated?: boolean; size?: number });
interface ExecutionEvent extends ExecutionIds {
  tool_execution_id: string;
  tool_name: string;
  status: string;
  timestamp: number;
}
export interface ActEvent extends ExecutionEvent {
  type: "act";
  tool_input: unknown;
}
export interface ObserveEvent extends ExecutionEvent {
  type: "observe";
  result: unknown;
  observation: unknown;
  is_error: boolean;
  duration_ms: number;
  truncated?: boolean;
  size?: number;
}
export type TimelineEvent =
  | ActEvent
  | ObserveEvent
  | TimelineText
  | { type: "text_start"; seq: number }
  | { type: "text_delta" | "thought_delta"; seq: number; delta: string }
  | { type: "text_end"; seq: number; full_text: string }
  | { type: "complete" | "cancelled" | "error" | "restart"; reason?: string; message?: string };

/** The timeline of a session in the format `act-observe`: its texts, and the state of executions by message and id. */
export class Timeline {
  readonly format: "act-observe";
  readonly items: Map<number, TimelineItem>;
  /** Replace everything by a history: the `messages` of `GET /v1/sessions/{session}?format=act-observe`. */
  load(items: TimelineHistoryItem[]): void;
  begin(message?: string): void;
  /** Apply an event of a live stream and return the item that it changed. */
  apply(event: TimelineEvent): TimelineItem | undefined;
  /** Return all texts and executions, in order. */
  list(): TimelineItem[];
  /** Return all executions, in order. */
  executions(): Execution[];
  /** Return an execution by the user's message before it and its `execution_id` or `callslip_id`. */
  execution(message: string, id: string): Execution | undefined;
}

/** `ShellMessages`, `Timeline`, or your own view of a format that streams by turn. */
export interface SessionView {
  readonly format: string;
  load(messages: any[]): void;
  begin(message?: string): void;
  apply(event: any): unknown;
}
export interface FollowOptions {
  /** The server's base URL; "" is the origin of the page. */
  url?: string;
  session: string;
  token?: string;
  /** Stop when it is aborted. */
  signal?: AbortSignal;
  onChange?: (view: any) => void;
  /** "waiting": the connection was lost, and there will be another. */
  onStatus?: (status: "live" | "waiting") => void;
  fetch?: typeof fetch;
}
/** Fill a view with the history of a session, then with its live events. It rejects if the server refuses a request. */
export function followSession(view: SessionView, options: FollowOptions): Promise<void>;
