// The loop of every harness: JSON lines in, JSON lines out, in order.

/** Answers each job that comes on stdin with what `answer` makes of it. */
export async function answerEach(answer) {
  // Not readline: it also breaks lines at U+2028, which JSON may hold unescaped.
  process.stdin.setEncoding("utf8");
  let rest = "";
  const say = async (line) => process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  for await (const piece of process.stdin) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) await say(line);
  }
  if (rest) await say(rest);
}
