// Numbers for display: counts, tokens and costs.

/** A number with few digits: 950, 12.3k, 3.4M. @param {number} number */
export const shortNumber = (number) =>
  Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number).replace("K", "k");

/** @param {number} count @param {string} noun */
export const countOf = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** An amount in a currency as agents name it: that may be no known code, or none. @param {number} cost @param {string} currency */
function formatCost(cost, currency) {
  const digits = { minimumFractionDigits: 2, maximumFractionDigits: cost > 0 && cost < 0.01 ? 4 : 2 };
  try {
    return cost.toLocaleString("en", { style: "currency", currency, currencyDisplay: "narrowSymbol", ...digits });
  } catch {
    return `${cost.toLocaleString("en", digits)}${currency && ` ${currency}`}`;
  }
}

/** The stated costs, or "" if none are. @param {Record<string, number> | undefined} costs By currency. */
export const formatCosts = (costs) =>
  Object.entries(costs ?? {}).map(([currency, cost]) => formatCost(cost, currency)).join(" + ");
