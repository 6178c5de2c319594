import * as v from "valibot";
import { checkDestination } from "../core/destination.ts";
import { NAME } from "../core/names.ts";
import { SECRET_PREFIX } from "../core/signature.ts";
import type { Bindings, Problem } from "../outbox/configure.ts";
import type { SlackAccess } from "./slack.ts";
import type { WebhookChannel } from "./webhook-channel.ts";

/** Webhook channels at most. */
const WEBHOOK_CHANNELS_MAX = 100;
/** Bytes of a webhook's secret, by its convention. */
const SECRET_LEAST_BYTES = 24;
const SECRET_MOST_BYTES = 64;

/** How the environment sets up channels. */
export interface ChannelSettings {
  slack: Omit<SlackAccess, "callMs"> | null;
  signingSecret: string | null;
  /** By name, without `webhook:`. */
  webhooks: ReadonlyMap<string, WebhookChannel>;
}

// Each check has words of its own: valibot's own would show what it was given, and these are secrets.
const secretText = v.pipe(
  v.string("it is text"),
  v.regex(/^[\x21-\x7e]{1,512}$/, "it is 1 to 512 printable characters without a blank"),
);
const apiUrl = v.pipe(
  v.string("it is text"),
  v.check((text) => /^https?:\/\//.test(text) && URL.canParse(text), "an address that begins with https:// or http://"),
  v.transform((text) => text.replace(/\/+$/, "")),
);
const webhookSecret = v.pipe(
  v.string("a secret is text"),
  v.regex(/^whsec_[A-Za-z0-9+/]+={0,2}$/, "a secret is whsec_ and base64"),
  v.check((secret) => {
    const bytes = bytesOf(secret.slice(SECRET_PREFIX.length));
    return bytes >= SECRET_LEAST_BYTES && bytes <= SECRET_MOST_BYTES;
  }, `a secret is ${SECRET_LEAST_BYTES} to ${SECRET_MOST_BYTES} bytes in base64`),
);

const webhooksSchema = (allowPrivate: boolean) =>
  v.pipe(
    v.string("it is JSON"),
    v.parseJson(undefined, "it is not JSON"),
    v.check((value) => !Array.isArray(value), "it is an object of channels by name"),
    v.record(
      v.pipe(v.string(), v.regex(NAME, "a channel is named in a-z, 0-9 and -")),
      v.strictObject(
        {
          url: v.pipe(
            v.string("a url is text"),
            v.rawCheck(({ dataset, addIssue }) => {
              if (!dataset.typed) return;
              const destination = checkDestination(dataset.value, { allowPrivate });
              if (!destination.ok) addIssue({ message: destination.message });
            }),
          ),
          secret: webhookSecret,
        },
        "a channel is {url, secret} and no more",
      ),
      "it is an object of channels by name",
    ),
    v.check((all) => Object.keys(all).length <= WEBHOOK_CHANNELS_MAX, `at most ${WEBHOOK_CHANNELS_MAX} channels`),
  );

/** Reads the settings of channels. A problem names its setting, and never shows a secret. */
export function readChannelSettings(env: Bindings): { settings: ChannelSettings; problems: Problem[] } {
  const problems: Problem[] = [];
  const read = <Schema extends v.GenericSchema>(name: string, schema: Schema): v.InferOutput<Schema> | null => {
    const value = env[name];
    if (value === undefined || value === "") return null;
    const parsed = v.safeParse(schema, value);
    if (parsed.success) return parsed.output;
    const [issue] = parsed.issues;
    const path = v.getDotPath(issue);
    problems.push({
      code: "bad_setting",
      setting: name,
      detail: path === null ? issue.message : `${path}: ${issue.message}`,
    });
    return null;
  };
  const token = read("SLACK_BOT_TOKEN", secretText);
  const url = read("SLACK_API_URL", apiUrl) ?? "https://slack.com/api";
  const webhooks = read("WEBHOOK_CHANNELS", webhooksSchema(env.WEBHOOKS_ALLOW_PRIVATE === "true"));
  return {
    settings: {
      slack: token === null ? null : { url, token },
      signingSecret: read("SLACK_SIGNING_SECRET", secretText),
      webhooks: new Map(Object.entries(webhooks ?? {})),
    },
    problems,
  };
}

/** How many bytes base64 stands for; 0 = it is none. */
function bytesOf(base64: string): number {
  try {
    return atob(base64).length;
  } catch {
    return 0;
  }
}
