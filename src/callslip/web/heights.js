// How high the rows of a long list are: measured where they were drawn, guessed elsewhere.

export class Heights {
  /** @param {(id: number) => number} guess */
  constructor(guess) {
    this.guess = guess;
    /** @type {Map<number, number>} */
    this.guessed = new Map();
    /** @type {Map<number, number>} */
    this.known = new Map();
    /** @type {number[]} */
    this.ids = [];
    /** The top of each row, and at last the bottom of the last one. */
    this.tops = new Float64Array(1);
    this.stale = false;
  }

  /** The rows, in order. @param {number[]} ids */
  take(ids) {
    if (ids === this.ids) return;
    this.ids = ids;
    this.stale = true;
  }

  /** A row was drawn and is so high. Whether that is news. @param {number} id @param {number} height */
  measure(id, height) {
    const before = this.known.get(id);
    if (before !== undefined && Math.abs(before - height) < 0.5) return false;
    this.known.set(id, height);
    this.stale = true;
    return true;
  }

  /** All rows have another width, so that their heights are guesses again. */
  forget() {
    this.known.clear();
    this.stale = true;
  }

  /** The first guess about a row; it holds until the row is drawn. @param {number} id */
  first(id) {
    const height = this.guess(id);
    this.guessed.set(id, height);
    return height;
  }

  sum() {
    if (!this.stale) return this.tops;
    const tops = new Float64Array(this.ids.length + 1);
    for (let at = 0; at < this.ids.length; at++) {
      const id = this.ids[at];
      tops[at + 1] = tops[at] + (this.known.get(id) ?? this.guessed.get(id) ?? this.first(id));
    }
    this.stale = false;
    return (this.tops = tops);
  }

  /** Where a row begins; for the number of rows, where the last one ends. @param {number} index */
  top(index) {
    return this.sum()[index] ?? this.total();
  }

  total() {
    return this.sum()[this.ids.length];
  }

  /** The row at a height, within the list. @param {number} y */
  at(y) {
    const tops = this.sum();
    let [low, high] = [0, this.ids.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (tops[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  /**
   * The rows between two heights, as [first, one after the last].
   * @param {number} from @param {number} to @returns {[number, number]}
   */
  between(from, to) {
    if (!this.ids.length) return [0, 0];
    return [this.at(from), Math.min(this.ids.length, this.at(to) + 1)];
  }
}
