/** A module, schedule, channel or subject name: 1 to 63 of `a-z 0-9 -`, not starting with `-`. */
export const NAME = /^[a-z0-9][a-z0-9-]{0,62}$/;

/** A topic's full name, `<module>.<topic>`. */
const TOPIC_NAME = /^[a-z0-9][a-z0-9-]{0,62}\.[a-z0-9][a-z0-9-]{0,62}$/;

/** True for `<module>.<topic>` with both parts a {@link NAME}. */
export function isTopicName(text: string): boolean {
  return TOPIC_NAME.test(text);
}

/** Splits `webhooks.deliver` into its module and its topic. */
export function splitTopicName(name: string): { module: string; topic: string } {
  const dot = name.indexOf(".");
  return { module: name.slice(0, dot), topic: name.slice(dot + 1) };
}
