/** No job system: what Node does by itself with the same items, some at a time. */
export async function open(_address, handle) {
  let waiting = [];
  let busy = 0;
  return {
    async enqueue(payloads) {
      waiting.push(...payloads);
    },
    async work({ concurrency }) {
      const all = waiting;
      let next = 0;
      const one = async () => {
        while (next < all.length) await handle(all[next++]);
        busy -= 1;
      };
      busy = concurrency;
      waiting = [];
      for (let n = 0; n < concurrency; n++) one();
    },
    async stop() {},
    left: async () => waiting.length + busy > 0,
    async clear() {
      waiting = [];
    },
    fill: () => Promise.reject(new Error("nothing is stored")),
  };
}
