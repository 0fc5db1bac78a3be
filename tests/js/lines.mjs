// The loop of every harness: read JSON lines, and write a JSON line for each, in order.

/** Write the result of `answer` for each job on stdin. */
export async function answerEach(answer) {
  // readline is not used: it also breaks lines at U+2028, which JSON may contain unescaped.
  process.stdin.setEncoding("utf8");
  let rest = "";
  const writeAnswer = async (line) => process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`);
  for await (const piece of process.stdin) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) await writeAnswer(line);
  }
  if (rest) await writeAnswer(rest);
}
