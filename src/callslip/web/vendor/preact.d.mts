/** As much of preact as the page uses. */

/** What a component gives back. */
export type Drawn = any;
export function createElement(type: any, props: any, ...children: any[]): Drawn;
export function render(drawn: Drawn, parent: Element | DocumentFragment | null): void;
export const Fragment: any;
