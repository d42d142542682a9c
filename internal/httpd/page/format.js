// How values are written. Everything here is pure.

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

// size writes bytes: 512 B, 1.5 KiB.
export function size(bytes) {
  let unit = 0;
  let value = Math.abs(bytes);
  while (value >= 1023.95 && unit < units.length - 1) {
    value /= 1024;
    unit++;
  }
  return `${bytes < 0 ? '-' : ''}${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

// span writes seconds with the two largest units: 4.2 s, 3m 12s, 5d 3h.
export function span(seconds) {
  if (seconds < 9.95) return `${seconds < 0.05 ? 0 : seconds.toFixed(1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${s % 60}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${Math.floor(s / 60) % 60}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor(s / 3600) % 24}h`;
}

// count writes a number with commas between thousands.
export const count = (n) => Math.round(n).toLocaleString('en-US');

// rate writes a number of things a second, short: 0.4, 12, 3.4k, 1.2M.
export function rate(n) {
  if (n === 0) return '0';
  if (n < 9.95) return n.toFixed(1);
  if (n < 999.5) return String(Math.round(n));
  if (n < 999_500) return `${(n / 1e3).toFixed(n < 9_950 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(n < 9_950_000 ? 1 : 0)}M`;
}

// plural is a number with its noun.
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? '' : 's'}`;

// version writes a server_version_num: 180004 is 18.4.
export const version = (n) => (n ? `${Math.floor(n / 10000)}.${n % 10000}` : 'unknown');

// clock writes a time of day in the reader's zone, with the date where it is not today.
export function clock(time) {
  const at = new Date(time);
  const today = new Date().toDateString() === at.toDateString();
  const two = (n) => String(n).padStart(2, '0');
  const hours = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return today ? hours : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${hours}`;
}

// lsn makes a number of 16/B374D848; the numbers stay below 2^53 for petabytes to come.
export function lsn(text) {
  const [high, low] = (text || '0/0').split('/');
  return parseInt(high, 16) * 2 ** 32 + parseInt(low, 16);
}
