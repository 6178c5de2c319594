import * as v from "valibot";

/** What the module reads from the Worker's environment. */
export const settings = v.pipe(
  v.object({ WEBHOOKS_ALLOW_PRIVATE: v.optional(v.picklist(["true", "false"]), "false") }),
  v.transform(({ WEBHOOKS_ALLOW_PRIVATE }) => ({
    /** Endpoints may be http, loopback or private. For local use. */
    allowPrivate: WEBHOOKS_ALLOW_PRIVATE === "true",
  })),
);

export type Settings = v.InferOutput<typeof settings>;
