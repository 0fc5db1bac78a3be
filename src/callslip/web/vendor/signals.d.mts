/** As much of @preact/signals as the page uses. */

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
