/** As much of htm as the page uses. */

type Drawn = any;
type Draw = (type: any, props: any, ...children: any[]) => Drawn;
declare const htm: { bind(draw: Draw): (strings: TemplateStringsArray, ...values: any[]) => Drawn };
export default htm;
