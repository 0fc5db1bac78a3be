// Numbers of tokens and costs as texts.

/** @param {number} count */
export const formatTokens = (count) => {
  if (count < 1000) return `${count}`;
  if (count < 999_500) return `${(count / 1000).toFixed(count < 99_950 ? 1 : 0)}k`;
  return `${(count / 1_000_000).toFixed(1)}M`;
};

/** @param {string} currency @param {number} cost */
function formatCost(currency, cost) {
  const maximumFractionDigits = cost > 0 && cost < 0.01 ? 4 : 2;
  try {
    return cost.toLocaleString("en", { style: "currency", currency, maximumFractionDigits });
  } catch {
    return `${cost.toFixed(maximumFractionDigits)} ${currency}`; // No code of a currency.
  }
}

/** Format costs by currency, "" for none. @param {Record<string, number> | undefined} costs */
export const formatCosts = (costs) =>
  Object.entries(costs ?? {}).map(([currency, cost]) => formatCost(currency || "USD", cost)).join(" + ");
