// The heights of the rows of a long list: measured for drawn rows, estimated for others.

export class Heights {
  /** @param {(id: string) => number} guess */
  constructor(guess) {
    this.guess = guess;
    /** @type {Map<string, number>} */
    this.guessed = new Map();
    /** @type {Map<string, number>} */
    this.measured = new Map();
    /** @type {string[]} */
    this.ids = [];
    /** The top of each row, followed by the bottom of the last one. */
    this.tops = new Float64Array(1);
    this.isStale = false;
  }

  /** Set the rows, in order. @param {string[]} ids */
  setIds(ids) {
    if (ids === this.ids) return;
    this.ids = ids;
    this.isStale = true;
  }

  /** Record the measured height of a row. Return whether it changed. @param {string} id @param {number} height */
  measure(id, height) {
    const before = this.measured.get(id);
    if (before !== undefined && Math.abs(before - height) < 0.5) return false;
    this.measured.set(id, height);
    this.isStale = true;
    return true;
  }

  /** Discard all measured heights, because the width changed. */
  forget() {
    this.measured.clear();
    this.isStale = true;
  }

  /** Estimate the height of a row. The estimate holds until the row is drawn. @param {string} id */
  guessHeight(id) {
    const height = this.guess(id);
    this.guessed.set(id, height);
    return height;
  }

  computeTops() {
    if (!this.isStale) return this.tops;
    const tops = new Float64Array(this.ids.length + 1);
    for (let at = 0; at < this.ids.length; at++) {
      const id = this.ids[at];
      tops[at + 1] = tops[at] + (this.measured.get(id) ?? this.guessed.get(id) ?? this.guessHeight(id));
    }
    this.isStale = false;
    return (this.tops = tops);
  }

  /** Return the top of a row; for the number of rows, the bottom of the last one. @param {number} index */
  top(index) {
    return this.computeTops()[index] ?? this.total();
  }

  total() {
    return this.computeTops()[this.ids.length];
  }

  /** Return the index of the row at a vertical position. @param {number} y */
  indexAt(y) {
    const tops = this.computeTops();
    let [low, high] = [0, this.ids.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (tops[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  /**
   * Return the rows between two vertical positions, as [first, last + 1].
   * @param {number} from @param {number} to @returns {[number, number]}
   */
  visibleRange(from, to) {
    if (!this.ids.length) return [0, 0];
    return [this.indexAt(from), Math.min(this.ids.length, this.indexAt(to) + 1)];
  }
}
