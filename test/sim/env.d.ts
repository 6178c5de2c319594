/** What `VITE_…` variables of the shell become in tests that run inside the runtime. */
interface ImportMeta {
  readonly env: Readonly<Record<string, string | undefined>>;
}
