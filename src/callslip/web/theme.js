// Runs before the first paint: the theme that was chosen here, so that nothing flashes. The switch is in header.js.
{
  /** @type {string | null} */
  let chosen = null;
  try {
    chosen = localStorage.getItem("callslip.theme");
  } catch {
    // Storage may be forbidden; then the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
