/** How time passes for the client. Tests bring their own. */
export interface Clock {
  /** Milliseconds of a time line that never goes back. */
  now(): number;
  /** Ends after so many milliseconds, or throws the reason of the signal. */
  sleep(milliseconds: number, signal?: AbortSignal): Promise<void>;
}

/** The clock of the machine. */
export const systemClock: Clock = {
  now: () => performance.now(),
  sleep: (milliseconds, signal) =>
    new Promise((resolve, reject) => {
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const ended = () => {
        signal?.removeEventListener("abort", aborted);
        resolve();
      };
      const aborted = () => {
        clearTimeout(timer);
        reject(signal?.reason);
      };
      const timer = setTimeout(ended, milliseconds);
      signal?.addEventListener("abort", aborted, { once: true });
    }),
};

/** How long to wait between tries: exponential with full jitter. */
export interface Backoff {
  /** The longest first wait, in milliseconds. Default: 100. */
  first?: number;
  /** The longest wait of all, in milliseconds. Default: 5,000. */
  cap?: number;
}

/** The wait before try `number`, counted from 1 for the first repeat: drawn evenly from 0 to the bound. */
export function wait(number: number, { first = 100, cap = 5_000 }: Backoff, random: () => number): number {
  return random() * Math.min(cap, first * 2 ** Math.min(number - 1, 30));
}
