// Apply the saved theme before the first paint, so that the page does not flash. The button is in header.js.
{
  /** @type {string | null} */
  let chosen = null;
  try {
    chosen = localStorage.getItem("callslip.theme");
  } catch {
    // Storage may be forbidden; the system's theme is then used.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
