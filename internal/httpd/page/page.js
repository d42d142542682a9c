// The page: asks for what is new every two seconds and shows it. Whatever a server or a
// table is called is text, and never markup.

import { clock, count, lsn, plural, rate, size, span, version } from './format.js';
import { binary, decimal, Plot, sexagesimal } from './plot.js';

const interval = 2000;
const keptToken = 'pgapply-token';
const byId = (id) => document.getElementById(id);

// make builds an element; children are elements or text.
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// prose is text in which `words` are commands.
function prose(text) {
  return text.split('`').map((part, i) => (i % 2 ? make('code', {}, part) : part));
}

// table makes one of columns {title, className} and rows of cells.
function table(columns, rows) {
  const cell = (tag, i, content) => make(tag, { class: columns[i].kind, scope: tag === 'th' ? 'col' : null }, content);
  return make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': columns.label || 'table' },
    make('table', {},
      make('thead', {}, make('tr', {}, ...columns.map((c, i) => cell('th', i, c.title)))),
      make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((content, i) => cell('td', i, content)))))));
}

// section shows data in its place, and touches nothing while it stays the same: what a
// reader has selected or opened stays so.
const shown = new Map();
function section(id, data, render) {
  const key = JSON.stringify(data);
  if (shown.get(id) === key) return;
  shown.set(id, key);
  const place = byId(id).querySelector(':scope > div') || byId(id);
  const children = render(data);
  place.replaceChildren(...children);
  if (byId(id).classList.contains('card')) byId(id).hidden = children.length === 0;
}

// ask fetches JSON; it throws Denied where a token is wanted.
class Denied extends Error {}
let token = sessionStorage.getItem(keptToken) || '';
async function ask(path) {
  const answer = await fetch(path, {
    headers: token ? { Authorization: `Bearer ${token}` } : {},
    signal: AbortSignal.timeout(30_000),
    cache: 'no-store',
  });
  if (answer.status === 401) throw new Denied();
  if (!answer.ok) throw new Error(`${path} answered ${answer.status}`);
  return answer.json();
}

// States, each with a sign, so that colour is not all that tells them apart.
const states = {
  streaming: ['●', 'good'], copying: ['◐', ''], starting: ['◌', ''], waiting: ['◌', ''],
  paused: ['❚❚', ''], retrying: ['▲', 'bad'], stopped: ['■', 'bad'],
};

function showState(report) {
  const { status } = report;
  const [sign, kind] = states[status.state] || ['?', ''];
  const stuck = report.runner.alive === false;
  byId('state').hidden = false;
  byId('state').className = `pill ${stuck ? 'bad' : kind}`;
  byId('state').textContent = stuck ? '■ stuck' : `${sign} ${status.state}`;
  byId('name').textContent = report.subscription;
  document.title = `${report.subscription} · ${status.state} · pgapply`;
}

function showProblems(report) {
  section('problems', { problems: report.problems, error: report.last_error, hint: report.last_error_hint, at: report.last_error_at }, (d) => {
    const cards = [];
    if (d.error) {
      cards.push(make('div', { class: 'card problem error' },
        make('h2', {}, d.at ? `Last error, at ${clock(d.at)}` : 'Last error'),
        make('p', {}, d.error),
        d.hint ? make('p', {}, make('b', {}, 'What to do: '), ...prose(d.hint)) : null));
    }
    // The error itself is above already.
    const others = d.problems.filter((p) => !d.error || !p.includes(d.error));
    if (others.length) {
      cards.push(make('div', { class: 'card problem' }, make('h2', {}, 'Needs attention'),
        make('ul', {}, ...others.map((p) => make('li', {}, ...prose(p))))));
    }
    return cards;
  });
}

function tile(title, value, note, warn) {
  return make('div', { class: `card tile${warn ? ' warn' : ''}` }, make('p', {}, title), make('p', {}, value), make('p', {}, note));
}

function slotNote(slot) {
  if (slot.lost) return `lost: ${slot.lost}`;
  const room = slot.safe_wal_size === undefined ? '' : slot.safe_wal_size > 0 ? `, room for ${size(slot.safe_wal_size)}` : ', no room left';
  return (slot.active ? 'slot in use' : 'slot not in use') + room;
}

function showTiles(report, now) {
  const { status, lag, tables, conflicts, publisher } = report;
  const all = Object.values(tables).reduce((a, b) => a + b, 0);
  const ready = tables.r || 0;
  const slot = publisher && publisher.reachable ? publisher.slot : null;
  const met = Object.values(status.conflicts || {}).reduce((a, b) => a + b, 0);
  const lagNote = !lag.known ? 'nobody can tell' : lag.bytes === 0 ? 'nothing waits' : lag.streaming ? `${size(lag.bytes)} not applied` : 'of WAL behind the publisher';
  section('tiles', { lag, lagNote, rows: rate(now.rows), tx: rate(now.transactions), ready, all, total: conflicts.total, met, slot, at: status.state }, () => [
    tile('Lag', lag.known ? (lag.streaming ? span(lag.seconds) : size(lag.bytes)) : '–', lagNote),
    tile('Rows a second', rate(now.rows), now.copied ? `and ${rate(now.copied)} copied` : `${count(status.rows.inserted + status.rows.updated + status.rows.deleted)} in all`),
    tile('Transactions a second', rate(now.transactions), `${count(status.transactions)} in all`),
    tile('Tables ready', all ? `${count(ready)} of ${count(all)}` : '–', all ? (ready === all ? 'all of them' : `${plural(all - ready, 'table')} to go`) : 'none yet', all > 0 && ready < all),
    tile('Conflicts recorded', count(conflicts.total), met ? `${count(met)} met by this runner` : 'none met by this runner', conflicts.total > 0),
    tile('WAL kept for the slot', slot ? size(slot.retained_bytes) : '–', slot ? slotNote(slot) : publisher ? 'the publisher does not answer' : 'publisher not asked yet', slot && (slot.lost || slot.wal_status === 'unreserved')),
  ]);
}

function showCopy(status) {
  section('copy', status.copy || null, (copy) => {
    if (!copy) return [];
    const bar = (name, note, share) => make('div', { class: 'job' }, make('p', {}, make('span', {}, name), make('span', {}, note)),
      make('progress', { max: '1', value: String(share), 'aria-label': `${name}: ${note}` }));
    const percent = (share) => `${Math.floor(share * 100)} %`;
    const failed = copy.failed ? `, ${count(copy.failed)} failed` : '';
    return [
      bar(`${count(copy.done)} of ${plural(copy.tables, 'table')}${failed}`, `${count(copy.rows)} rows, ${size(copy.bytes)}, ${percent(copy.share)}`, copy.share),
      ...(copy.running || []).map((t) => bar(t.table,
        `${count(t.rows)}${t.rows < t.estimated_rows ? ` of about ${count(t.estimated_rows)}` : ''} rows${t.parts > 1 ? `, ${t.parts_done} of ${t.parts} parts` : ''}, ${percent(t.share)}`, t.share)),
    ];
  });
}

// Those in trouble first, then those in work.
const mostTables = 12;
function showTables(report) {
  section('tables', report.not_ready || [], (list) => {
    if (!list.length) return [];
    const rank = (t) => (t.last_error ? 0 : t.state === 'i' ? 2 : 1);
    const rows = list.toSorted((a, b) => rank(a) - rank(b)).slice(0, mostTables).map((t) => [t.table, t.state_text, t.last_error || '']);
    const rest = list.length - rows.length;
    return [
      table([{ title: 'Table', kind: 'wide' }, { title: 'State', kind: 'nowrap' }, { title: 'What kept it', kind: 'wide' }], rows),
      ...(rest > 0 ? [make('p', { class: 'quiet' }, `and ${count(rest)} more: `, ...prose('`pgapply status --tables` lists all'))] : []),
    ];
  });
}

function showWorkers(status) {
  section('workers', { workers: status.workers || [], slow: status.row_by_row || [] }, ({ workers, slow }) => {
    const parts = [];
    if (!workers.length) parts.push(make('p', { class: 'quiet' }, 'None yet: they are there while it streams.'));
    else {
      parts.push(table([{ title: '#', kind: 'number' }, { title: 'Doing', kind: 'nowrap' }, { title: 'Since', kind: 'nowrap' }, { title: 'What', kind: 'wide' }],
        workers.map((w) => [String(w.worker), w.state, w.state === 'idle' ? '' : clock(w.state_since), [
          w.xid ? `transaction ${w.xid}` : '', w.transactions ? plural(w.transactions, 'transaction') : '',
          w.changes ? plural(w.changes, 'change') : '', w.waiting_for ? `waits for ${w.waiting_for}` : '',
        ].filter(Boolean).join(', ')])));
    }
    if (slow.length) {
      parts.push(make('details', {}, make('summary', {}, `${plural(slow.length, 'table')} applied row by row`),
        make('ul', {}, ...slow.slice(0, mostTables).map((t) => make('li', {}, `${t.table}: ${t.reason}`)))));
    }
    return parts;
  });
}

function showPositions(report) {
  const { status } = report;
  const prepared = report.prepared_transactions;
  section('positions', [status.received_lsn, status.applied_lsn, status.flushed_lsn, status.acknowledged_lsn, status.last_commit_time, prepared], () => {
    const received = lsn(status.received_lsn);
    const behind = (text) => (lsn(text) === 0 || received === 0 ? '' : lsn(text) < received ? `${size(received - lsn(text))} behind` : 'level');
    const row = (name, text, note) => [name, make('span', { class: 'mono' }, lsn(text) === 0 ? '–' : text), note];
    return [table([{ title: '' }, { title: 'LSN' }, { title: 'Against received' }], [
      row('Received', status.received_lsn, ''),
      row('Applied', status.applied_lsn, behind(status.applied_lsn)),
      row('Durable here', status.flushed_lsn, behind(status.flushed_lsn)),
      row('Acknowledged', status.acknowledged_lsn, behind(status.acknowledged_lsn)),
    ]), ...(status.last_commit_time ? [make('p', { class: 'quiet' }, `The last applied transaction committed at ${clock(status.last_commit_time)} on the publisher.`)] : []),
    ...(prepared ? [make('p', { class: 'quiet' }, `${plural(prepared, 'prepared transaction')} on the target, the oldest since ${clock(report.oldest_prepared_at)}, whose end the publisher has not told yet.`)] : [])];
  });
}

// value is a cell of a row; undefined is a column that is not in it.
function value(v) {
  if (v === undefined) return make('td', { class: 'value none' }, '–');
  if (v === null) return make('td', { class: 'value none' }, 'null');
  return make('td', { class: 'value' }, typeof v === 'string' ? v : JSON.stringify(v));
}

function conflictRows(c) {
  const local = (c.local_conflicts || []).filter((l) => l.tuple || l.key);
  const remote = c.remote_tuple || c.replica_identity || null;
  if (!remote && !local.length) return null;
  const names = new Set(Object.keys(remote || {}));
  for (const l of local) for (const name of Object.keys(l.tuple || l.key)) names.add(name);
  const heading = (text) => make('th', { scope: 'col' }, text);
  const rows = [...names].map((name) => {
    const theirs = remote ? remote[name] : undefined;
    const ours = local.map((l) => (l.tuple || l.key)[name]);
    const differs = ours.some((v) => v !== undefined && theirs !== undefined && JSON.stringify(v) !== JSON.stringify(theirs));
    return make('tr', { class: differs ? 'differs' : null },
      make('th', { scope: 'row' }, name, differs ? make('span', { class: 'mark', role: 'img', 'aria-label': 'differs', title: 'differs' }, ' ≠') : null),
      remote ? value(theirs) : null, ...ours.map(value));
  });
  return make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'rows' }, make('table', {},
    make('thead', {}, make('tr', {}, heading('Column'),
      remote ? heading(c.remote_tuple ? 'From the publisher' : 'Searched by') : null,
      ...local.map((_, i) => heading(local.length > 1 ? `On the target (${i + 1})` : 'On the target')))),
    make('tbody', {}, ...rows)));
}

const fates = {
  applied: 'applied over it', skipped: 'nothing to apply to', kept: 'local row kept', failed: '▲ failed, waits', skipped_transaction: 'transaction skipped',
};

function conflictDetails(c, values, open) {
  const fact = (name, text) => (text ? make('span', {}, `${name} `, make('b', {}, text)) : null);
  const local = (c.local_conflicts || [])[0] || {};
  const rows = values ? conflictRows(c) : null;
  const why = values
    ? ['The values are too long for this page, or were not recorded: ', ...prose(`\`pgapply conflicts show ${c.id}\``)]
    : ['Values of rows are shown with a token, or over the loopback address; ', ...prose(`\`pgapply conflicts show ${c.id}\` has them`), '.'];
  return make('details', { class: 'conflict', open, 'data-id': String(c.id) },
    make('summary', {}, make('time', { class: 'nowrap', datetime: c.at }, clock(c.at)), make('span', { class: 'what' }, c.conflict_type),
      make('span', { class: 'where' }, `${c.schemaname}.${c.relname}`), make('span', { class: `fate ${c.resolution}` }, fates[c.resolution] || c.resolution)),
    make('div', { class: 'inside' },
      make('p', { class: 'facts' }, fact('number', String(c.id)), fact('policy', c.policy), fact('transaction', String(c.remote_xid || '')), fact('finished at', c.remote_commit_lsn),
        fact('committed', c.remote_commit_ts ? clock(c.remote_commit_ts) : ''), fact('index', local.index), fact('local transaction', local.xid), fact('local origin', local.origin)),
      rows || make('p', { class: 'quiet' }, ...why)));
}

function showConflicts(answer, total) {
  section('conflicts', { ...answer, total }, ({ conflicts, values }) => {
    if (!conflicts.length) return [make('p', { class: 'quiet' }, 'None. What was changed on the target and meets a change of the publisher appears here.')];
    const open = new Set([...byId('conflicts').querySelectorAll('details[open]')].map((d) => d.dataset.id));
    const rest = total - conflicts.length;
    return [
      ...conflicts.map((c) => conflictDetails(c, values, open.has(String(c.id)))),
      ...(rest > 0 ? [make('p', { class: 'quiet' }, `and ${count(rest)} older: `, ...prose('`pgapply conflicts list`'))] : []),
    ];
  });
}

function showFoot(report) {
  const { status, runner, target } = report;
  const minutes = Math.floor((Date.now() - Date.parse(runner.started_at)) / 60000);
  section('foot', [runner.pid, runner.version, target, status.publisher, minutes], () => [
    `pgapply ${runner.version}, process ${runner.pid} on ${runner.host || 'this host'}, ${minutes < 1 ? 'just started' : `up ${span(minutes * 60)}`}`,
    `publisher PostgreSQL ${version(status.publisher.server_version)}, target ${version(target.server_version)}`,
    make('span', {}, make('a', { href: 'status' }, 'status'), ' · ', make('a', { href: 'metrics' }, 'metrics'), ' · ', make('a', { href: 'readyz' }, 'readyz')),
  ].map((part) => (typeof part === 'string' ? make('span', {}, part) : part)));
}

// The history: what the server keeps, and what has come since.
const history = { at: [], lag_seconds: [], lag_bytes: [], transactions: [], rows: [], copied_rows: [], span: 0 };

function remember(more) {
  history.span = more.interval_ms * more.capacity;
  more.at_ms.forEach((at, i) => {
    history.at.push(at);
    for (const name of ['lag_seconds', 'lag_bytes', 'transactions', 'rows', 'copied_rows']) history[name].push(more[name][i]);
  });
  const extra = history.at.length - more.capacity;
  if (extra > 0) for (const list of Object.values(history)) if (Array.isArray(list)) list.splice(0, extra);
}

// rates are the differences of counters, a second; a counter that begins anew has none.
function rates(name) {
  const list = history[name];
  return list.map((n, i) => (i === 0 || n < list[i - 1] ? null : ((n - list[i - 1]) * 1000) / (history.at[i] - history.at[i - 1])));
}

const known = (list) => list.map((n) => (n < 0 ? null : n));
const transactions = new Plot('Transactions a second', rate, decimal, 10);
const copied = new Plot('Rows copied a second', rate, decimal, 10);
const plots = [
  [new Plot('Lag', span, sexagesimal, 1), () => known(history.lag_seconds)],
  [new Plot('Lag in WAL', size, binary, 1024), () => known(history.lag_bytes)],
  [new Plot('Rows a second', rate, decimal, 10), () => rates('rows')],
  [transactions, () => rates('transactions')],
  [copied, () => rates('copied_rows')],
];
byId('plots').append(...plots.map(([plot]) => plot.figure));

const shortest = 5 * 60_000;
function showPlots(copies) {
  if (!history.at.length) return;
  transactions.figure.hidden = copies;
  copied.figure.hidden = !copies;
  const to = history.at[history.at.length - 1];
  // What there is, in whole minutes, from five on.
  const from = to - Math.min(history.span, Math.max(shortest, Math.ceil((to - history.at[0]) / 60_000) * 60_000));
  for (const [plot, series] of plots) {
    const values = series();
    plot.show(history.at.map((at, i) => ({ at, value: values[i] })), from, to);
  }
}

const newest = (name) => rates(name).slice(-3).filter((n) => n !== null);
const mean = (list) => (list.length ? list.reduce((a, b) => a + b, 0) / list.length : 0);

// One round after the other, as long as somebody looks.
let heard = 0;
let conflictsSeen = '';
let conflicts = { conflicts: [], values: true };
async function round() {
  const last = history.at[history.at.length - 1] || 0;
  const [report, more] = await Promise.all([ask('status'), ask(`history?after=${last}`)]);
  const stamp = JSON.stringify([report.conflicts, report.status.conflicts]);
  if (stamp !== conflictsSeen) {
    conflicts = await ask('conflicts');
    conflictsSeen = stamp;
  }
  remember(more);
  heard = Date.now();
  byId('door').hidden = true;
  byId('main').hidden = false;
  showState(report);
  showProblems(report);
  showTiles(report, { rows: mean(newest('rows')), transactions: mean(newest('transactions')), copied: mean(newest('copied_rows')) });
  showPlots(Boolean(report.status.copy));
  showCopy(report.status);
  showTables(report);
  showWorkers(report.status);
  showPositions(report);
  showConflicts(conflicts, report.conflicts.total);
  showFoot(report);
}

function showPulse(error) {
  const lost = error && Date.now() - heard > 3 * interval;
  byId('pulse').className = lost ? 'lost' : 'quiet';
  if (!error) byId('pulse').textContent = `live, ${clock(heard)}`;
  else if (heard === 0) byId('pulse').textContent = 'no connection to the runner';
  else if (lost) byId('pulse').textContent = `no connection to the runner since ${clock(heard)}`;
}

function deny() {
  byId('refused').textContent = token ? 'That is not the token.' : '';
  token = '';
  sessionStorage.removeItem(keptToken);
  byId('main').hidden = true;
  byId('door').hidden = false;
  byId('pulse').className = 'quiet';
  byId('pulse').textContent = '';
  byId('state').hidden = true;
  byId('name').textContent = 'locked';
  byId('token').focus();
}

let running = false;
async function live() {
  if (running) return;
  running = true;
  try {
    while (!document.hidden) {
      try {
        await round();
        showPulse(null);
      } catch (error) {
        if (error instanceof Denied) return deny();
        console.warn(error);
        showPulse(error);
      }
      await new Promise((wake) => setTimeout(wake, interval));
    }
  } finally {
    running = false;
  }
}

byId('door').addEventListener('submit', (event) => {
  event.preventDefault();
  token = byId('token').value.trim();
  byId('token').value = '';
  sessionStorage.setItem(keptToken, token);
  live();
});
document.addEventListener('visibilitychange', live);
live();
