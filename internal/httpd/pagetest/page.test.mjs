// Looks at the page as people do: empty, busy, copying, with a conflict; on a desk and on a
// phone, light and dark; with a token, with hostile names, and when the runner goes away.
// PAGES holds the addresses of the servers. Screenshots go to shots/.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { chromium } from 'playwright-core';

const pages = JSON.parse(process.env.PAGES);
const desk = { width: 1240, height: 900 };
const phone = { width: 390, height: 844 };
// A busy machine takes its time.
const patience = 120_000;
let browser;

before(async () => {
  mkdirSync('shots', { recursive: true });
  browser = await chromium.launch({
    timeout: patience,
    executablePath: process.env.CHROMIUM || '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
  });
});
after(() => browser?.close());

// visit opens a page, and fails the test for whatever its console complains of or it asks
// of anybody else.
async function visit(t, scene, { viewport = desk, ready = '#main:not([hidden])', complaints = [] } = {}) {
  const context = await browser.newContext({ viewport, colorScheme: 'light', hasTouch: viewport === phone, deviceScaleFactor: viewport === phone ? 2 : 1 });
  t.after(() => context.close());
  context.setDefaultTimeout(patience);
  const page = await context.newPage();
  page.on('console', (m) => { if (['error', 'warning'].includes(m.type())) complaints.push(m.text()); });
  page.on('pageerror', (e) => complaints.push(String(e)));
  page.on('request', (r) => { if (!r.url().startsWith(pages[scene])) complaints.push(`asks for ${r.url()}`); });
  await page.goto(pages[scene]);
  await page.locator(ready).waitFor();
  return { page, context, complaints };
}

const text = (page, selector) => page.locator(selector).innerText();

// fits: nothing is wider than the window, so that a phone need not scroll sideways.
const fits = (page) => page.evaluate(() => document.documentElement.scrollWidth <= window.innerWidth);

// contrasts measures each text against what it is drawn on, by the formula of WCAG 2.
const contrasts = (page) => page.evaluate(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((c, i) => c * a + under[i] * (1 - a));
  const light = (c) => c.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    const above = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(parse(getComputedStyle(element).backgroundColor), above);
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const below = ground(element);
    const colour = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
    const [a, b] = [light(colour), light(below)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) poor.push(`${ratio.toFixed(1)} ${element.tagName} ${element.textContent.slice(0, 40)}`);
  }
  return poor;
});

// unnamed are controls and pictures that a screen reader would pass over.
const unnamed = (page) => page.evaluate(() => [...document.querySelectorAll('button, input, progress, svg, a, summary')]
  .filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
  .map((e) => e.outerHTML.slice(0, 80)));

describe('the page', { concurrency: 3 }, () => {
  for (const scene of ['empty', 'busy', 'copying', 'conflict']) {
    for (const [device, viewport] of [['desk', desk], ['phone', phone]]) {
      test(`${scene} on a ${device}, light and dark`, async (t) => {
        const { page, complaints } = await visit(t, scene, { viewport });
        if (scene === 'conflict') await page.locator('#conflicts summary').first().click();
        assert.ok(await fits(page), 'it is wider than the window');
        assert.deepEqual(await unnamed(page), []);
        for (const colorScheme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme });
          await page.screenshot({ path: `shots/${scene}-${device}-${colorScheme}.png`, fullPage: true });
          assert.deepEqual(await contrasts(page), [], colorScheme);
        }
        assert.deepEqual(complaints, []);
      });
    }
  }

  test('an empty system', async (t) => {
    const { page } = await visit(t, 'empty');
    assert.match(await text(page, '#state'), /starting/);
    assert.match(await text(page, '#tiles'), /Tables ready\s+–/);
    assert.match(await text(page, '#plots'), /nothing to show yet/);
    assert.match(await text(page, '#conflicts'), /None\./);
    assert.ok(await page.locator('#copy').isHidden());
    assert.ok(await page.locator('#problems').isHidden());
  });

  test('a busy one has its numbers, its past and its workers', async (t) => {
    const { page } = await visit(t, 'busy');
    assert.equal(await text(page, 'h1'), 'orders');
    assert.equal(await page.title(), 'orders · streaming · pgapply');
    assert.match(await text(page, '#tiles'), /Lag\s+0\.4 s\s+1\.3 MiB not applied/);
    assert.match(await text(page, '#tiles'), /42 of 42/);
    assert.match(await text(page, '#tiles'), /326\.0 MiB\s+slot in use, room for 9\.0 GiB/);
    assert.match(await text(page, '#workers'), /2\s+waiting\s+[\d:-]+[^]*transaction 48119233, 250,118 changes, waits for more to arrive/);
    assert.match(await text(page, '#positions'), /16\/B3601000\s+1\.3 MiB behind/);
    assert.match(await text(page, '#foot'), /publisher PostgreSQL 14\.22, target 18\.4/);
    const line = page.locator('.plot').first().locator('.line');
    const drawn = await line.getAttribute('d');
    assert.ok(drawn.split('L').length > 800, 'the plot has its past');
    assert.ok(drawn.split('M').length >= 3, 'what is not known is a gap');
  });

  test('a plot says the value under the pointer', async (t) => {
    const { page } = await visit(t, 'busy');
    const plot = page.locator('.plot').first();
    const before = await plot.locator('.reading').innerText();
    await plot.locator('svg').hover({ position: { x: 200, y: 60 } });
    await page.waitForFunction((old) => document.querySelector('.reading').innerText !== old, before);
    assert.match(await plot.locator('.reading').innerText(), /^\d\d:\d\d:\d\d: /);
  });

  test('it is live', async (t) => {
    const { page } = await visit(t, 'busy');
    const first = await text(page, '#pulse');
    await page.waitForFunction((old) => document.getElementById('pulse').innerText !== old, first);
    assert.match(await text(page, '#pulse'), /^live, /);
  });

  test('a copy shows how far it is, and what keeps a table', async (t) => {
    const { page } = await visit(t, 'copying');
    assert.match(await text(page, '#copy'), /17 of 42 tables, 1 failed\s+81,234,567 rows, 9\.0 GiB, 43 %/);
    assert.match(await text(page, '#copy'), /public\.order_lines\s+61,000,000 of about 120,000,000 rows, 24 of 48 parts, 51 %/);
    assert.equal(await page.locator('#copy progress').first().getAttribute('value'), '0.43');
    assert.match(await text(page, '#tables'), /public\.t19\s+initializing\s+column "discount"/);
  });

  test('a conflict shows the rows, what differs, and the remedy', async (t) => {
    const { page } = await visit(t, 'conflict');
    assert.match(await text(page, '#problems'), /customers_email_key[^]*What to do: see pgapply conflicts show --name orders 118/);
    const conflict = page.locator('#conflicts details').first();
    assert.match(await conflict.locator('summary').innerText(), /insert_exists\s*public\.customers\s*▲ failed, waits/);
    await conflict.locator('summary').click();
    assert.match(await conflict.innerText(), /name ≠\s+Jörg Müller\s+Joerg Mueller/);
    assert.match(await conflict.innerText(), /email\s+joerg@example\.com\s+joerg@example\.com\s*(\n|$)/);
    // What is open stays open when the page hears more.
    const first = await text(page, '#pulse');
    await page.waitForFunction((old) => document.getElementById('pulse').innerText !== old, first);
    assert.ok(await conflict.getAttribute('open') !== null);
    const long = page.locator('#conflicts details').nth(3);
    await long.locator('summary').click();
    assert.match(await long.innerText(), /pgapply conflicts show 115/);
  });

  test('names are text', async (t) => {
    const { page, complaints } = await visit(t, 'hostile');
    for (const summary of await page.locator('summary').all()) await summary.click();
    await page.screenshot({ path: 'shots/hostile-desk-light.png', fullPage: true });
    assert.equal(await page.evaluate(() => window.hit), undefined);
    assert.equal(await page.locator('main img, main script, main b img').count(), 0);
    assert.ok((await text(page, '#conflicts')).includes('<img src=x onerror="window.hit=1">'));
    assert.ok((await text(page, '#copy')).includes('<script>'));
    assert.ok(await fits(page));
    assert.deepEqual(complaints, []);
  });

  test('the policy forbids scripts that are not ours', async (t) => {
    const { page } = await visit(t, 'busy');
    await page.evaluate(() => {
      const script = document.createElement('script');
      script.textContent = 'window.hit = 1';
      document.body.append(script);
    });
    assert.equal(await page.evaluate(() => window.hit), undefined);
  });

  test('a token is asked for, and kept as long as the tab', async (t) => {
    const { page, context } = await visit(t, 'token', { viewport: phone, ready: '#door:not([hidden])' });
    await page.screenshot({ path: 'shots/token-phone-light.png', fullPage: true });
    assert.ok(await page.locator('#main').isHidden());
    assert.equal(await page.evaluate(() => document.activeElement.id), 'token');
    await page.getByLabel('This server asks for its token').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByText('That is not the token.').waitFor();
    await page.getByLabel('This server asks for its token').fill('open-sesame-and-more');
    await page.getByRole('button', { name: 'Show' }).click();
    await page.locator('#main:not([hidden])').waitFor();
    await page.reload();
    await page.locator('#main:not([hidden])').waitFor();
    const other = await context.newPage();
    await other.goto(pages.token);
    await other.locator('#door:not([hidden])').waitFor();
  });

  test('a runner that goes away is said to be gone', async (t) => {
    const { page, context } = await visit(t, 'busy');
    await context.setOffline(true);
    await page.getByText('no connection to the runner since').waitFor();
    assert.ok(await page.locator('#main').isVisible(), 'what was last known stays');
    await context.setOffline(false);
    await page.getByText('live, ').waitFor();
  });
});
