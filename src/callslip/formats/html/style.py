"""Define the style of the file without scripts, light and dark.

Every text colour has a contrast of at least 4.5 on every background it is used on.
"""

from __future__ import annotations

GROUNDS = ("page", "card", "code", "person")
INKS = ("text", "quiet", "waiting", "asking", "running", "good", "bad", "gone")

LIGHT = {
    "page": "#f7f7f5",
    "card": "#ffffff",
    "code": "#f2f3f5",
    "person": "#e6eefb",
    "line": "#d9dce1",
    "text": "#1b1d21",
    "quiet": "#565c66",
    "waiting": "#565c66",
    "asking": "#7d4a00",
    "running": "#0a5a96",
    "good": "#17632f",
    "bad": "#a9211a",
    "gone": "#6f3791",
    "added": "#e0f3e5",
    "removed": "#fbe5e3",
}
DARK = {
    "page": "#131518",
    "card": "#1b1e22",
    "code": "#121417",
    "person": "#1f2c40",
    "line": "#363b42",
    "text": "#e7e8ea",
    "quiet": "#a9afb9",
    "waiting": "#a9afb9",
    "asking": "#f0c06f",
    "running": "#82c4f7",
    "good": "#74cd92",
    "bad": "#ffa198",
    "gone": "#d4aaf2",
    "added": "#12301d",
    "removed": "#3a1a18",
}

_RULES = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
[data-waits] body>*{display:none}
body{margin:0;background:var(--page);color:var(--text);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
body>*{max-width:50rem;margin:0 auto;padding:0 1.25rem}
body>header{padding-top:2.5rem;padding-bottom:1rem}
body>footer{padding-top:1rem;padding-bottom:3rem;color:var(--quiet);font-size:.8125rem}
h1{margin:0 0 .25rem;font-size:1.625rem;line-height:1.25;letter-spacing:-.01em;overflow-wrap:anywhere}
h2{display:flex;align-items:center;gap:.75rem;margin:1.75rem 0 1rem;font-size:.8125rem;
font-weight:600;color:var(--quiet)}
h2::after{content:"";flex:1;border-top:1px solid var(--line)}
p,ul,ol{margin:0;padding:0}
time{font-variant-numeric:tabular-nums;white-space:nowrap}
code,pre,.control{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace}
code{font-size:.875em;overflow-wrap:anywhere}
.about{color:var(--quiet);overflow-wrap:anywhere}
.tally{display:flex;flex-wrap:wrap;gap:.375rem;margin-top:.875rem;list-style:none}
.state,.tally li{padding:.0625rem .5625rem;border:1px solid;border-radius:1rem;font-size:.8125rem;font-weight:600;
line-height:1.5;white-space:nowrap;background:var(--card)}
article{margin:0 0 1rem}
.sub{margin:0 0 1rem;padding-left:1rem;border-left:2px solid var(--line)}
.who{display:flex;align-items:baseline;gap:.5rem;margin-bottom:.125rem;font-size:.8125rem;color:var(--quiet)}
.who b{color:var(--text)}
.text{white-space:pre-wrap;overflow-wrap:anywhere;unicode-bidi:plaintext}
.person{padding:.75rem 1rem;border-radius:.75rem;background:var(--person)}
.thought,.offer{color:var(--quiet);font-size:.9375rem}
.thought .text{margin:.25rem 0 0;padding-left:.875rem;border-left:2px solid var(--line);font-style:italic}
.mode{text-align:center;color:var(--quiet);font-size:.875rem}
.card{border:1px solid var(--line);border-left:4px solid var(--tone,var(--line));border-radius:.625rem;
background:var(--card);padding:.75rem 1rem}
.top{display:flex;flex-wrap:wrap;align-items:baseline;gap:.25rem .625rem}
.top .state{color:var(--tone)}
.title{flex:1 1 12rem;min-width:0;font-weight:600;white-space:pre-wrap;overflow-wrap:anywhere}
.facts{margin-top:.25rem;font-size:.8125rem;color:var(--quiet);overflow-wrap:anywhere}
.facts code{font-size:.9375em}
.note{margin-top:.5rem;font-size:.875rem;color:var(--quiet);overflow-wrap:anywhere;white-space:pre-wrap}
.error{margin-top:.5rem;color:var(--bad)}
.error b,.why b{font-size:.8125rem}
.why{margin-top:.5rem}
.card details{margin-top:.5rem}
summary{cursor:pointer;font-size:.8125rem;font-weight:600;color:var(--quiet)}
summary time,summary bdi{font-weight:400}
summary time{margin-left:.375rem}
summary:focus-visible,pre:focus-visible{outline:2px solid var(--running);outline-offset:2px}
pre{margin:.375rem 0 0;padding:.625rem .75rem;max-height:32rem;overflow:auto;border-radius:.375rem;
background:var(--code);font-size:.8125rem;line-height:1.5;white-space:pre-wrap;overflow-wrap:anywhere;tab-size:4;unicode-bidi:plaintext}
.removed,.added{display:block}
.removed{background:var(--removed)}
.added{background:var(--added)}
.list{margin-top:.375rem;list-style:none}
.list li{display:flex;gap:.625rem;padding:.125rem 0}
.list small{color:var(--quiet);font-size:.8125rem}
.list .done{color:var(--good)}
.list .now{color:var(--running)}
.list .then{color:var(--quiet)}
.list span:last-child{min-width:0;overflow-wrap:anywhere;white-space:pre-wrap}
.control{padding:0 .125rem;border:1px solid;border-radius:.1875rem;font-size:.75em;color:var(--asking);
unicode-bidi:isolate}
.queued{--tone:var(--waiting)}
.awaiting,.pending{--tone:var(--asking)}
.running{--tone:var(--running)}
.completed,.granted{--tone:var(--good)}
.failed,.denied,.refused{--tone:var(--bad)}
.cancelled,.expired,.lost,.withdrawn,.released,.moot,.superseded{--tone:var(--gone)}
.tally li{color:var(--tone)}
@media (max-width:30rem){body{font-size:15px}body>*{padding-left:.875rem;padding-right:.875rem}
body>header{padding-top:1.5rem}.card{padding:.625rem .75rem}}
@media print{pre{max-height:none}article{break-inside:avoid}}
"""


def _palette(colours: dict[str, str]) -> str:
    return ":root{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


STYLE = f"{_palette(LIGHT)}@media (prefers-color-scheme:dark){{{_palette(DARK)}}}" + _RULES.replace("\n", "")
