import { defineModule } from "../../index.ts";
import { commands } from "./commands.ts";
import { poll } from "./poll.ts";
import { type Settings, settings } from "./settings.ts";

/** Polls merchants' accounts, each on a grid of its own: a failing one backs off alone. */
export const merchants = defineModule<Settings>("merchants", { topics: [poll], commands, settings });
