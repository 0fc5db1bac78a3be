/** The types of what parts.js gives: as much of preact, htm and signals as the page uses. */

export interface ReadonlySignal<T> {
  readonly value: T;
  peek(): T;
  subscribe(then: (value: T) => void): () => void;
}
export interface Signal<T> extends ReadonlySignal<T> {
  value: T;
}
export interface SignalOptions {
  watched?: () => void;
  unwatched?: () => void;
  name?: string;
}
export function signal<T>(value: T, options?: SignalOptions): Signal<T>;
export function computed<T>(compute: () => T): ReadonlySignal<T>;
export function effect(run: () => unknown): () => void;
export function batch<T>(run: () => T): T;
export function untracked<T>(run: () => T): T;
export function useSignal<T>(value: T): Signal<T>;
export function useComputed<T>(compute: () => T): ReadonlySignal<T>;
export function useSignalEffect(run: () => unknown): void;

/** What a component gives back. */
export type Drawn = any;
export function html(strings: TemplateStringsArray, ...values: any[]): Drawn;
export function render(drawn: Drawn, parent: Element | DocumentFragment | null): void;
export const Fragment: any;

type Inputs = readonly unknown[];
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useState<T = undefined>(): [T | undefined, (next: T | undefined) => void];
export function useEffect(run: () => unknown, inputs?: Inputs): void;
export function useLayoutEffect(run: () => unknown, inputs?: Inputs): void;
export function useMemo<T>(make: () => T, inputs?: Inputs): T;
export function useCallback<T extends (...given: any[]) => any>(does: T, inputs?: Inputs): T;
export function useRef<T>(initial: T): { current: T };
export function useRef<T>(initial: T | null): { current: T | null };
export function useRef<T = undefined>(): { current: T | undefined };
export function useId(): string;
export function useErrorBoundary(told?: (error: any) => void): [any, () => void];

/** Class names, without those that do not hold. */
export function classes(...names: (string | false | null | undefined | 0)[]): string;

/** A component that is loaded when it is first shown. */
export function lazily(load: () => Promise<{ default: any }>): any;
