import { describe, expect, test } from "vitest";
import { type Actor, type ActorKind, type Grants, TICK } from "../../src/commands/actor.ts";
import { loadPolicy, may, mayTick } from "../../src/commands/policy.ts";
import type { Effect } from "../../src/outbox/module.ts";

const ALL: Grants = { actions: "all", channels: "all", scopes: "all" };
const NONE: Grants = { actions: [], channels: [], scopes: [] };
const actor = (kind: ActorKind, grants: Partial<Grants> = {}): Actor => ({
  kind,
  id: `${kind}:x`,
  grants: { ...NONE, ...grants },
});
const command = (effect: Effect, more: { personOnly?: boolean; scoped?: boolean; grant?: string } = {}) => ({
  name: "thing.do",
  effect,
  grant: "thing:run",
  personOnly: false,
  scoped: false,
  ...more,
});

describe("the policy", () => {
  const effects = ["read", "exec", "write"] as const;

  test("gives a person what he holds, and nothing else", () => {
    for (const effect of effects) {
      expect(may(actor("user", { actions: ["thing:run"] }), command(effect))).toEqual({ ok: true });
      expect(may(actor("user", { actions: ["thing:read"], channels: "all", scopes: "all" }), command(effect))).toEqual({
        ok: false,
        code: "not_granted",
        field: "thing:run",
        message: "this needs the grant thing:run",
      });
    }
    expect(may(actor("user", ALL), command("write", { personOnly: true }))).toEqual({ ok: true });
  });

  test("asks a person for the channel he dispatches into, and names it", () => {
    const ann = actor("user", { actions: ["thing:run"], channels: ["inbox:ops"] });
    expect(may(ann, command("exec"), { channel: "inbox:ops" })).toEqual({ ok: true });
    expect(may(ann, command("exec"), { channel: "slack:ops" })).toMatchObject({
      code: "not_granted",
      field: "slack:ops",
      message: "this needs the channel slack:ops",
    });
  });

  test("asks for the scope, which only a command that knows scopes takes", () => {
    const ann = actor("user", { actions: ["thing:run"], scopes: ["acme/api"] });
    const scoped = command("exec", { scoped: true });
    expect(may(ann, scoped, { scope: "acme/api" })).toEqual({ ok: true });
    expect(may(ann, scoped, { scope: "acme/web" })).toMatchObject({ code: "not_granted", field: "acme/web" });
    expect(may(ann, command("exec"), { scope: "acme/api" })).toMatchObject({ code: "bad_arguments", field: "scope" });
  });

  test("refuses a schedule that writes before anything else, then what is a person's alone, then grant and scope", () => {
    const nightly = actor("schedule");
    const everything = { channel: "slack:ops", scope: "x" };
    expect(may(nightly, command("write", { personOnly: true }), everything)).toMatchObject({ code: "schedule_write" });
    expect(may(actor("schedule", ALL), command("write"))).toMatchObject({ code: "schedule_write" });
    expect(may(nightly, command("exec", { personOnly: true }), everything)).toMatchObject({ code: "schedule_fire" });
    expect(may(actor("schedule", ALL), command("read", { personOnly: true }))).toMatchObject({ code: "schedule_fire" });
    expect(may(nightly, command("exec"), everything)).toMatchObject({ code: "not_granted", field: "thing:run" });
    const granted = actor("schedule", { actions: ["thing:run"] });
    expect(may(granted, command("exec"), everything)).toMatchObject({ code: "bad_arguments", field: "scope" });
    expect(may(granted, command("exec", { scoped: true }), everything)).toMatchObject({
      code: "not_granted",
      field: "x",
    });
    // Its channel is its row's: nobody asks for it.
    expect(may(granted, command("exec"), { channel: "slack:ops" })).toEqual({ ok: true });
  });

  test("gives the runtime itself no command, whatever it holds", () => {
    for (const effect of effects) {
      expect(may(actor("service", ALL), command(effect))).toMatchObject({ code: "not_granted" });
      expect(may(TICK, command(effect, { grant: "tick:fire" }))).toMatchObject({ code: "not_granted" });
    }
  });

  test("makes whoever holds some scopes, and not all, say in which one he acts", () => {
    const scoped = command("write", { scoped: true, grant: "thing:write" });
    const limited = actor("user", { actions: ["thing:write"], scopes: ["shop-1"] });
    expect(may(limited, scoped)).toMatchObject({ code: "not_granted", field: "scope" });
    expect(may(limited, scoped, { scope: "shop-1" })).toEqual({ ok: true });
    expect(may(actor("user", { actions: ["thing:write"], scopes: "all" }), scoped)).toEqual({ ok: true });
    expect(
      may(actor("user", { actions: ["thing:write"], scopes: ["shop-1"] }), command("write", { grant: "thing:write" })),
    ).toEqual({ ok: true });
  });

  test("lets an outer clock fire the tick, and do nothing else", () => {
    const clock = actor("user", { actions: ["tick:fire"] });
    expect(mayTick(clock)).toEqual({ ok: true });
    expect(mayTick(TICK)).toEqual({ ok: true });
    expect(mayTick(actor("user", { actions: ["tick:read"] }))).toMatchObject({ field: "tick:fire" });
    expect(mayTick(actor("schedule", ALL))).toMatchObject({ code: "not_granted" });
    for (const effect of effects) {
      expect(may(clock, command(effect))).toMatchObject({ code: "not_granted" });
      expect(may(clock, command(effect, { grant: "tick:fire" }))).toMatchObject({ code: "not_granted" });
    }
  });

  test("throws when it is loaded for a word it does not know", () => {
    const rule = { effect: "read", kinds: ["user"], conditions: ["holds-grant"] };
    expect(loadPolicy([rule])).toEqual([rule]);
    expect(Object.isFrozen(loadPolicy([rule])[0])).toBe(true);
    for (const wrong of [
      { ...rule, effect: "delete" },
      { ...rule, kinds: ["robot"] },
      { ...rule, conditions: ["holds-luck"] },
      { ...rule, conditions: ["toString"] },
      { ...rule, conditions: [] },
      { ...rule, kinds: [] },
      { ...rule, unless: "admin" },
    ]) {
      expect(() => loadPolicy([rule, wrong]), JSON.stringify(wrong)).toThrow();
    }
  });
});
