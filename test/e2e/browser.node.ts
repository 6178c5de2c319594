import axe from "axe-core";
import { type Browser, type BrowserContext, chromium, type Page } from "playwright-core";
import { expect } from "vitest";

/** A real Chromium, and what it must not say: errors on its console, reports of the page's own policy. */

/** Debian's own; `CHROMIUM` names another. */
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";

export const startChromium = (): Promise<Browser> =>
  chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });

/** A window, and the complaints of all its pages. */
export interface Window {
  page: Page;
  complaints: string[];
}

export async function openWindow(browser: Browser, options: Parameters<Browser["newContext"]>[0]): Promise<Window> {
  const context: BrowserContext = await browser.newContext(options);
  const complaints: string[] = [];
  const page = await context.newPage();
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") {
      complaints.push(`${page.url()}: ${message.text()} ${message.location().url}`);
    }
  });
  page.on("pageerror", (error) => complaints.push(`${page.url()}: ${error.message}`));
  await context.exposeFunction("toldOfPolicy", (report: string) => complaints.push(report));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, lineNumber }) => {
      const tell = (globalThis as unknown as { toldOfPolicy(report: string): void }).toldOfPolicy;
      tell(`policy: ${violatedDirective} ${blockedURI} line ${lineNumber}`);
    });
  });
  return { page, complaints };
}

interface Violation {
  id: string;
  impact: string | null;
  help: string;
  nodes: { target: string[]; failureSummary?: string }[];
}

/** Holds a page to axe's rules: nothing serious, nothing critical. */
export async function checkAccess(page: Page, what: string): Promise<void> {
  await page.evaluate(axe.source);
  const violations = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(): Promise<{ violations: Violation[] }> } };
    return (await axe.run()).violations;
  });
  const grave = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  const told = grave.map(({ id, help, nodes }) => `${id}: ${help}: ${JSON.stringify(nodes.slice(0, 3))}`);
  expect(told, what).toEqual([]);
}
