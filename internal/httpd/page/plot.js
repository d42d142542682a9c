// A line over time, as SVG, with a grid of round numbers, and the value under the pointer.

const svgNamespace = 'http://www.w3.org/2000/svg';
const width = 560;
const height = 170;
const left = 66;
const right = 10;
const top = 10;
const bottom = 24;

function draw(tag, attributes, text) {
  const element = document.createElementNS(svgNamespace, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// short leaves out a fraction of zero, which says nothing beside a line of a grid.
const short = (text) => text.replace(/\.0(?!\d)/, '');

// ceiling is a round number at or above the largest value, in steps that the unit has.
function ceiling(value, steps) {
  let scale = 1;
  for (;;) {
    for (const step of steps) if (step * scale >= value) return step * scale;
    scale *= steps[steps.length - 1];
  }
}

export const decimal = [1, 2, 5, 10];
export const binary = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
// sexagesimal are seconds, minutes, hours, days.
export const sexagesimal = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];

// Plot is a figure with a title, the newest value, and the line. Points are {at, value},
// where a value may be null: then the line has a gap.
export class Plot {
  constructor(title, write, steps, smallest) {
    Object.assign(this, { title, write, steps, smallest, points: [] });
    this.figure = document.createElement('figure');
    this.figure.className = 'card plot';
    const caption = document.createElement('figcaption');
    const heading = document.createElement('h2');
    heading.textContent = title;
    this.now = document.createElement('p');
    this.now.className = 'reading';
    caption.append(heading, this.now);
    this.svg = draw('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img' });
    this.figure.append(caption, this.svg);
    this.svg.addEventListener('pointermove', (event) => this.point(event));
    this.svg.addEventListener('pointerdown', (event) => this.point(event));
    this.svg.addEventListener('pointerleave', () => this.rest());
  }

  // show draws points between two times.
  show(points, from, to) {
    Object.assign(this, { points, from, to });
    const known = points.map((p) => p.value).filter((v) => v !== null);
    const highest = ceiling(Math.max(this.smallest, ...known), this.steps);
    this.x = (at) => left + ((at - from) / (to - from)) * (width - left - right);
    this.y = (value) => height - bottom - (value / highest) * (height - top - bottom);
    const parts = [];
    for (const share of [0, 0.5, 1]) {
      const y = this.y(highest * share);
      parts.push(draw('line', { x1: left, x2: width - right, y1: y, y2: y, class: 'grid' }));
      parts.push(draw('text', { x: left - 6, y: y + 4, 'text-anchor': 'end' }, short(this.write(highest * share))));
    }
    const minutes = Math.round((to - from) / 60000);
    parts.push(draw('text', { x: left, y: height - 6 }, `${minutes} min ago`));
    parts.push(draw('text', { x: width - right, y: height - 6, 'text-anchor': 'end' }, 'now'));
    const runs = this.runs();
    parts.push(draw('path', { d: this.area(runs), class: 'area' }), draw('path', { d: this.line(runs), class: 'line' }));
    if (known.length === 0) {
      parts.push(draw('text', { x: (left + width) / 2, y: height / 2 - 6, 'text-anchor': 'middle', class: 'nothing' }, 'nothing to show yet'));
    }
    this.cursor = draw('line', { x1: 0, x2: 0, y1: top, y2: height - bottom, class: 'cursor', visibility: 'hidden' });
    parts.push(this.cursor);
    this.svg.replaceChildren(...parts);
    if (this.at === undefined) this.rest();
    else this.mark();
  }

  // runs are the stretches in which values are known, as places in the drawing.
  runs() {
    const runs = [];
    let run = null;
    for (const { at, value } of this.points) {
      if (value === null) {
        run = null;
        continue;
      }
      if (run === null) runs.push((run = []));
      run.push([this.x(at).toFixed(1), this.y(value).toFixed(1)]);
    }
    return runs;
  }

  // line draws a lone point as a dot.
  line(runs) {
    return runs.map((run) => `M${run.join('L')}${run.length === 1 ? 'h0.1' : ''}`).join('');
  }

  area(runs) {
    const base = this.y(0).toFixed(1);
    return runs.map((run) => `M${run[0][0]},${base}L${run.join('L')}L${run[run.length - 1][0]},${base}Z`).join('');
  }

  // say writes one point's value, and says the newest to who cannot see the line.
  say(p, when) {
    const text = p && p.value !== null ? this.write(p.value) : 'unknown';
    this.now.textContent = when ? `${when}: ${text}` : text;
    if (!when) this.svg.setAttribute('aria-label', `${this.title} over time; now ${text}`);
  }

  rest() {
    this.at = undefined;
    this.cursor?.setAttribute('visibility', 'hidden');
    this.say(this.points[this.points.length - 1], '');
  }

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * width;
    this.at = this.from + ((x - left) / (width - left - right)) * (this.to - this.from);
    this.mark();
  }

  // mark shows the point that is nearest to the pointer.
  mark() {
    let nearest = null;
    for (const p of this.points) {
      if (nearest === null || Math.abs(p.at - this.at) < Math.abs(nearest.at - this.at)) nearest = p;
    }
    if (nearest === null) return;
    const x = this.x(nearest.at);
    this.cursor.setAttribute('x1', x);
    this.cursor.setAttribute('x2', x);
    this.cursor.setAttribute('visibility', 'visible');
    this.say(nearest, new Date(nearest.at).toLocaleTimeString('en-GB'));
  }
}
