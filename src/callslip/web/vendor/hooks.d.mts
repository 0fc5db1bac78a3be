/** As much of preact's hooks as the page uses. */

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
