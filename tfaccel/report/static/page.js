"use strict";
(() => {
  const { charts, clocks, names } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colours = 8;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const compared = clocks.length > 1;
  const colourOf = (run) => css(`--series-${run % colours}`);

  const number = (value) => {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size !== 0 && size < 0.001 ? value.toExponential(2) : String(+value.toPrecision(4));
  };
  const duration = (minutes) =>
    minutes < 1 ? `${Math.round(60 * minutes)} s` : `${+minutes.toPrecision(3)} min`;

  // Steps of a run to minutes: what timing.csv tells, straight lines between.
  const minutesAt = ({ steps, seconds }, step) => {
    let after = steps.findIndex((known) => known >= step);
    if (after === -1) return null;
    const [x0, y0] = after ? [steps[after - 1], seconds[after - 1]] : [0, 0];
    const share = steps[after] === x0 ? 1 : (step - x0) / (steps[after] - x0);
    return (y0 + share * (seconds[after] - y0)) / 60;
  };
  const axes = {
    Steps: { known: () => true, place: (clock, step) => step, text: (x) => `step ${number(x)}` },
    Epochs: {
      known: (clock) => clock.steps_per_epoch,
      place: (clock, step) => step / clock.steps_per_epoch,
      text: (x) => `epoch ${+x.toFixed(2)}`,
    },
    Minutes: {
      known: (clock) => clock.steps.length,
      place: minutesAt,
      text: (x) => duration(x),
    },
  };

  const tableOf = ({ x, y, run }, axis) => {
    const points = x.map((step, i) => [axis.place(clocks[run], step), y[i]]);
    const kept = points.filter(([place]) => place != null);
    return [kept.map((point) => point[0]), kept.map((point) => point[1])];
  };

  const seriesOf = (one, index) => {
    const colour = () => colourOf(compared ? one.run : index);
    const last = one.y.findLast((value) => value != null);
    const sparse = one.x.length <= 40;
    return {
      label: compared ? names[one.run] : one.label,
      stroke: colour,
      width: one.x.length > 300 ? 1.25 : 2,
      dash: compared && one.run >= colours ? [6, 4] : undefined, // the colours come round again
      points: { show: one.style === "marked" ? sparse : one.x.length < 2, size: 6, fill: colour },
      // Without a pointer: the last value.
      value: (plot, value, _, point) => number(point == null ? last : value),
    };
  };

  const draw = (holder, chart, axis, logarithmic) => {
    const data = uPlot.join(chart.series.map((one) => tableOf(one, axis)));
    const ticks = {
      stroke: () => css("--soft"),
      font: "12px Inter, system-ui, sans-serif",
      grid: { stroke: () => css("--grid"), width: 1 },
      ticks: { show: false },
    };
    const range = (plot, low, high) => {
      if (low == null) return [0, 1];
      const room = (high - low || Math.abs(high) || 1) * 0.06;
      const bottom = chart.zero || (low >= 0 && low - room < 0) ? 0 : low - room;
      return [bottom, chart.unit === "%" ? Math.min(100, high + room) : high + room];
    };
    return new uPlot(
      {
        width: holder.clientWidth,
        height: 240,
        padding: [8, 12, 0, 0],
        cursor: { sync: { key: "page" }, drag: { x: true, y: false }, points: { size: 8 } },
        legend: { markers: { width: 0, fill: (plot, i) => plot.series[i].stroke(plot, i) } },
        scales: { x: { time: false }, y: logarithmic ? { distr: 3 } : { range } },
        axes: [
          { ...ticks, size: 32, gap: 6, values: (plot, marks) => marks.map(number) },
          {
            ...ticks,
            gap: 6,
            size: 56,
            values: (plot, marks) => marks.map((mark) => (mark == null ? "" : number(mark))),
          },
        ],
        series: [
          {
            label: "",
            value: (plot, value) => (value == null ? "at the end" : axis.text(value)),
          },
          ...chart.series.map(seriesOf),
        ],
      },
      data,
      holder
    );
  };

  const figures = [...document.querySelectorAll(".chart")].map((figure) => ({
    holder: figure.querySelector(".plot"),
    caption: figure.querySelector("figcaption"),
    chart: charts[figure.dataset.chart],
    logarithmic: false,
  }));
  let axis = axes.Steps;
  const redraw = (figure) => {
    figure.plot?.destroy();
    figure.plot = draw(figure.holder, figure.chart, axis, figure.logarithmic);
  };

  const switchOf = (holder, options, chosen, choose) => {
    const buttons = options.map((option) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = option;
      button.setAttribute("aria-pressed", option === chosen);
      button.addEventListener("click", () => {
        buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
        choose(option);
      });
      return button;
    });
    holder.append(...buttons);
  };

  const known = Object.keys(axes).filter((name) => clocks.every((clock) => axes[name].known(clock)));
  const axisHolder = document.getElementById("axis");
  if (axisHolder && known.length > 1)
    switchOf(axisHolder, known, "Steps", (name) => {
      axis = axes[name];
      figures.forEach(redraw);
    });

  for (const figure of figures) {
    const values = figure.chart.series.flatMap((one) => one.y).filter((value) => value != null);
    if (/loss/i.test(figure.chart.title) && values.length && Math.min(...values) > 0) {
      const holder = document.createElement("span");
      holder.className = "switch log";
      figure.caption.append(holder);
      switchOf(holder, ["linear", "log"], "linear", (scale) => {
        figure.logarithmic = scale === "log";
        redraw(figure);
      });
    }
    redraw(figure);
  }

  const paint = () => {
    for (const chip of document.querySelectorAll(".chip"))
      chip.style.background = colourOf(chip.dataset.run);
  };
  paint();
  dark.addEventListener("change", () => {
    paint();
    figures.forEach(redraw);
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar
    width = innerWidth;
    for (const { plot, holder } of figures) plot.setSize({ width: holder.clientWidth, height: 240 });
  });

  for (const button of document.querySelectorAll(".copy"))
    button.addEventListener("click", async () => {
      const code = button.previousElementSibling;
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code); // a page from a file may not write
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
})();
