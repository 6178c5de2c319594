/** What happens when: a heap of events, by instant and then in the order they were put in. */
export class Agenda {
  #at: number[] = [];
  #nth: number[] = [];
  #work: (() => void)[] = [];
  #count = 0;
  now = 0;

  at(instant: number, work: () => void): void {
    const nth = this.#count++;
    const at = Math.max(instant, this.now);
    let index = this.#at.length;
    this.#at.push(at);
    this.#nth.push(nth);
    this.#work.push(work);
    while (index > 0) {
      const parent = (index - 1) >> 1;
      if (!this.#before(index, parent)) break;
      this.#swap(index, parent);
      index = parent;
    }
  }

  /** Runs events in order until there is none, or the next is later than `end`. */
  run(end: number): void {
    while (this.#at.length > 0 && (this.#at[0] as number) <= end) {
      this.now = this.#at[0] as number;
      const work = this.#work[0] as () => void;
      this.#dropFirst();
      work();
    }
  }

  #dropFirst(): void {
    const last = this.#at.length - 1;
    this.#swap(0, last);
    this.#at.pop();
    this.#nth.pop();
    this.#work.pop();
    let index = 0;
    for (;;) {
      const left = 2 * index + 1;
      if (left >= last) return;
      const least = left + 1 < last && this.#before(left + 1, left) ? left + 1 : left;
      if (!this.#before(least, index)) return;
      this.#swap(index, least);
      index = least;
    }
  }

  #before(a: number, b: number): boolean {
    const [first, second] = [this.#at[a] as number, this.#at[b] as number];
    return first < second || (first === second && (this.#nth[a] as number) < (this.#nth[b] as number));
  }

  #swap(a: number, b: number): void {
    for (const list of [this.#at, this.#nth, this.#work] as unknown[][]) {
      const kept = list[a];
      list[a] = list[b];
      list[b] = kept;
    }
  }
}
