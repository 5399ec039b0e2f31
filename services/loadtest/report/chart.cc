#include "services/loadtest/report/chart.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace baton::loadtest {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 260;
constexpr double kLeft = 58;
constexpr double kRight = 14;
constexpr double kTop = 44;
constexpr double kBottom = 38;
constexpr double kLegendStep = 130;
constexpr double kBarLeft = 120;
constexpr double kBarStep = 34;
constexpr size_t kMarkBytes = 24;

// The least of 1, 2, 5 x 10^n that is not below `value`.
double RoundUp(double value) {
  if (!(value > 0.0)) {
    return 1.0;
  }
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (value <= factor * power * (1 + 1e-9)) {
      return factor * power;
    }
  }
  return 10.0 * power;
}

// Maps values to one side of a drawing.
class Axis {
 public:
  Axis(double least, double most, double begin, double end, bool logarithmic)
      : least_(least), most_(most), begin_(begin), end_(end), logarithmic_(logarithmic) {}

  double operator()(double value) const {
    const double share = logarithmic_
                             ? std::log(std::max(value, least_) / least_) / std::log(most_ / least_)
                             : (value - least_) / (most_ - least_);
    return begin_ + std::clamp(share, 0.0, 1.0) * (end_ - begin_);
  }

  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (logarithmic_) {
      for (double tick = least_; tick <= most_ * (1 + 1e-9); tick *= 10) {
        ticks.push_back(tick);
      }
      return ticks;
    }
    const double step = RoundUp((most_ - least_) / 6);
    for (double tick = least_; tick <= most_ + step * 1e-6; tick += step) {
      ticks.push_back(tick);
    }
    return ticks;
  }

 private:
  double least_, most_, begin_, end_;
  bool logarithmic_;
};

Axis XAxis(const ChartLabels& labels, const std::vector<Series>& series) {
  double most = 0.0;
  double least = HUGE_VAL;
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      most = std::max(most, x);
      least = x > 0.0 ? std::min(least, x) : least;
    }
  }
  const double end = kWidth - kRight;
  if (!labels.log_x || least > most) {
    return {0.0, most > 0.0 ? most : 1.0, kLeft, end, false};
  }
  const double first = std::pow(10.0, std::floor(std::log10(least)));
  const double last = std::pow(10.0, std::ceil(std::log10(most)));
  return {first, std::max(last, 10 * first), kLeft, end, true};
}

Axis YAxis(const std::vector<Series>& series) {
  double most = 0.0;
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      most = std::max(most, y);
    }
  }
  const double step = RoundUp(most / 5);
  const double top = std::ceil(most / step - 1e-9) * step;
  return {0.0, top > 0.0 ? top : 1.0, kHeight - kBottom, kTop, false};
}

void AddText(double x, double y, const char* anchor, const std::string& text, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n",
                        x,
                        y,
                        anchor,
                        Escape(text));
}

void AddLine(const char* style, double x1, double y1, double x2, double y2, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                        style,
                        x1,
                        y1,
                        x2,
                        y2);
}

void AddAxes(const ChartLabels& labels, const Axis& x, const Axis& y, std::string* svg) {
  for (const double tick : y.Ticks()) {
    AddLine("grid", kLeft, y(tick), kWidth - kRight, y(tick), svg);
    AddText(kLeft - 6, y(tick) + 4, "end", ShortNumber(tick), svg);
  }
  for (const double tick : x.Ticks()) {
    AddLine("grid", x(tick), kTop, x(tick), kHeight - kBottom, svg);
    AddText(x(tick), kHeight - kBottom + 15, "middle", ShortNumber(tick), svg);
  }
  AddText((kLeft + kWidth - kRight) / 2, kHeight - 6, "middle", labels.x, svg);
  AddText(4, kTop - 8, "start", labels.y, svg);
}

void AddLegend(const std::vector<Series>& series, std::string* svg) {
  double x = kLeft + 60;
  const double step =
      std::min(kLegendStep, (kWidth - x) / static_cast<double>(std::max<size_t>(series.size(), 1)));
  for (const Series& one : series) {
    absl::StrAppendFormat(svg,
                          "<line x1=\"%.1f\" y1=\"30\" x2=\"%.1f\" y2=\"30\" stroke=\"%s\" "
                          "stroke-width=\"2\"%s/>\n",
                          x,
                          x + 18,
                          one.color,
                          one.dashed ? " stroke-dasharray=\"5 3\"" : "");
    AddText(x + 22, 34, "start", one.name, svg);
    x += step;
  }
}

// Round ends make a dot of a point that stands between two interruptions.
void AddSeries(const Series& series, const Axis& x, const Axis& y, std::string* svg) {
  absl::StrAppendFormat(svg,
                        "<path fill=\"none\" stroke=\"%s\" stroke-width=\"1.6\" "
                        "stroke-linecap=\"round\" stroke-linejoin=\"round\"%s d=\"",
                        series.color,
                        series.dashed ? " stroke-dasharray=\"5 3\"" : "");
  bool drawing = false;
  for (const auto& [at, value] : series.points) {
    if (!std::isnan(value)) {
      absl::StrAppendFormat(
          svg, "%c%.1f %.1f%s", drawing ? 'L' : 'M', x(at), y(value), drawing ? "" : "h0");
    }
    drawing = !std::isnan(value);
  }
  absl::StrAppend(svg, "\"/>\n");
}

// The colours of parts; those of a single bar with their values, which may be too small to see.
void AddPartNames(const std::vector<Bar>& bars,
                  const std::string& unit,
                  double y,
                  std::string* svg) {
  double x = 4;
  for (const Bar::Part& part : bars.front().parts) {
    absl::StrAppendFormat(svg,
                          "<rect x=\"%.1f\" y=\"%.1f\" width=\"10\" height=\"10\" fill=\"%s\"/>\n",
                          x,
                          y + 4,
                          part.color);
    const std::string value =
        bars.size() == 1 ? absl::StrCat(" ", ShortNumber(part.value), " ", unit) : "";
    AddText(x + 14, y + 13, "start", absl::StrCat(part.name, value), svg);
    x += (kWidth - 4) / static_cast<double>(bars.front().parts.size());
  }
}

std::string Shortened(const std::string& text) {
  return text.size() <= kMarkBytes ? text : absl::StrCat(text.substr(0, kMarkBytes), "…");
}

// Labels stand on the side of their line where there is more room. Marks may be close to each
// other: the label of the next one goes below, and starts again at the top in time.
void AddMarks(const std::vector<Mark>& marks, const Axis& x, std::string* svg) {
  double label_y = kTop + 10;
  for (const Mark& mark : marks) {
    const double at = x(mark.at);
    const bool left = at > kWidth / 2;
    AddLine("mark", at, kTop, at, kHeight - kBottom, svg);
    AddText(left ? at - 3 : at + 3, label_y, left ? "end" : "start", Shortened(mark.label), svg);
    label_y = label_y < kTop + 60 ? label_y + 13 : kTop + 10;
  }
}

bool HasPoints(const Series& series) {
  return std::ranges::any_of(series.points,
                             [](const auto& point) { return !std::isnan(point.second); });
}

std::string Begin(const std::string& title, double height) {
  std::string svg = absl::StrFormat(
      "<svg role=\"img\" viewBox=\"0 0 %.0f %.0f\" xmlns=\"http://www.w3.org/2000/svg\">\n"
      "<title>%s</title>\n<text class=\"title\" x=\"4\" y=\"15\">%s</text>\n",
      kWidth,
      height,
      Escape(title),
      Escape(title));
  return svg;
}

double Total(const Bar& bar) {
  double total = 0.0;
  for (const Bar::Part& part : bar.parts) {
    total += part.value;
  }
  return total;
}

void AddBar(const Bar& bar, const Axis& x, double y, const std::string& unit, std::string* svg) {
  AddText(kBarLeft - 8, y + 15, "end", bar.name, svg);
  double sum = 0.0;
  for (const Bar::Part& part : bar.parts) {
    absl::StrAppendFormat(
        svg,
        "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"20\" fill=\"%s\"><title>%s: %s "
        "%s</title></rect>\n",
        x(sum),
        y,
        std::max(x(sum + part.value) - x(sum), 0.0),
        part.color,
        Escape(part.name),
        ShortNumber(part.value),
        Escape(unit));
    sum += part.value;
  }
  AddText(x(sum) + 5, y + 15, "start", absl::StrCat(ShortNumber(sum), " ", unit), svg);
}

}  // namespace

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string ShortNumber(double value) {
  const double size = std::fabs(value);
  for (const auto& [unit, name] :
       {std::pair(1e12, "T"), std::pair(1e9, "G"), std::pair(1e6, "M"), std::pair(1e4, "k")}) {
    if (size >= unit) {
      const double divisor = unit == 1e4 ? 1e3 : unit;
      return absl::StrFormat("%.3g%s", value / divisor, name);
    }
  }
  return size >= 1000 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.3g", value);
}

std::string TableNumber(double value) {
  return value == std::round(value) && std::fabs(value) < 1e15 ? absl::StrFormat("%.0f", value)
                                                               : ShortNumber(value);
}

std::string LineChart(const ChartLabels& labels, const std::vector<Series>& series) {
  std::string svg = Begin(labels.title, kHeight);
  if (std::ranges::none_of(series, HasPoints)) {
    AddText(kWidth / 2, kHeight / 2, "middle", "no data", &svg);
    return svg + "</svg>\n";
  }
  const Axis x = XAxis(labels, series);
  const Axis y = YAxis(series);
  AddAxes(labels, x, y, &svg);
  AddMarks(labels.marks, x, &svg);
  for (const Series& one : series) {
    AddSeries(one, x, y, &svg);
  }
  AddLegend(series, &svg);
  return svg + "</svg>\n";
}

std::string BarChart(const std::string& title,
                     const std::string& unit,
                     const std::vector<Bar>& bars) {
  const double height = 62 + kBarStep * static_cast<double>(bars.size());
  std::string svg = Begin(title, height);
  double most = 0.0;
  for (const Bar& bar : bars) {
    most = std::max(most, Total(bar));
  }
  const Axis x(0.0, most > 0.0 ? most : 1.0, kBarLeft, kWidth - 90, false);
  double y = 30;
  for (const Bar& bar : bars) {
    AddBar(bar, x, y, unit, &svg);
    y += kBarStep;
  }
  if (!bars.empty() && bars.front().parts.size() > 1) {
    AddPartNames(bars, unit, y, &svg);
  }
  return svg + "</svg>\n";
}

}  // namespace baton::loadtest
