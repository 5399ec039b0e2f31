#include "services/lab/plot/quality_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

#include "common/eval/policy_sums.h"
#include "common/kv/codec/policy_params.h"

namespace baton::lab {
namespace {

constexpr double kWidth = 760.0;
constexpr double kHeight = 480.0;
constexpr double kLeft = 70.0;
constexpr double kRight = 24.0;
constexpr double kTop = 52.0;
constexpr double kBottom = 64.0;
constexpr double kRadius = 4.5;
// The axis of correct answers begins here, in %, or below the worst policy.
constexpr double kLeastShown = 95.0;

// All that leave prefill as hidden states.
constexpr std::string_view kHidden = "hidden";

// What a format looks like. Colours differ in lightness too, so that they stay apart in grey.
struct Series {
  std::string_view format;
  std::string_view colour;
  bool square;
};
constexpr std::array<Series, 13> kSeries = {{{kv::DensePolicy::kName, "#222222", true},
                                             {kv::Fp8Policy::kName, "#7a5195", true},
                                             {kv::DiffKvPolicy::kName, "#1b6ca8", false},
                                             {kv::ShadowKvPolicy::kName, "#d9822b", true},
                                             {kHidden, "#2f9e77", true},
                                             {kv::Int4Policy::kName, "#7fb3d5", false},
                                             {kv::KiviPolicy::kName, "#a9cce3", false},
                                             {kv::SnapKvPolicy::kName, "#c0392b", false},
                                             {kv::H2oPolicy::kName, "#e6867c", false},
                                             {kv::StreamingPolicy::kName, "#f2b8b0", false},
                                             {kv::QuestPolicy::kName, "#b8860b", true},
                                             {kv::LokiPolicy::kName, "#e0c068", true},
                                             {kv::StaticPolicy::kName, "#0b3c5d", false}}};

std::string_view FormatOf(std::string_view kv) {
  return kv.starts_with(kHidden) ? kHidden : kv.substr(0, kv.find(':'));
}

double Accuracy(const PlotPoint& point) {
  return point.cases == 0
             ? 0.0
             : 100.0 * static_cast<double>(point.correct) / static_cast<double>(point.cases);
}

std::string Escaped(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// One axis: from `low` to `high` in ticks of `step`, drawn from `begin` to `end`.
struct Axis {
  double low;
  double high;
  double step;
  double begin;
  double end;

  double At(double value) const { return begin + (value - low) / (high - low) * (end - begin); }
};

// Ticks of 1, 2 or 5 times a power of ten, between 4 and 10 of them.
Axis MakeAxis(double low, double high, double begin, double end) {
  const double span = std::max(high - low, 1.0);
  double step = std::pow(10.0, std::floor(std::log10(span)));
  for (const double factor : {0.2, 0.5, 1.0}) {
    if (span / (step * factor) <= 10.0) {
      step *= factor;
      break;
    }
  }
  const double first = std::floor(low / step) * step;
  return {.low = first,
          .high = std::max(std::ceil(high / step) * step, first + step),
          .step = step,
          .begin = begin,
          .end = end};
}

std::string Text(double x, double y, std::string_view anchor, std::string_view content) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escaped(content));
}

std::string Line(double x1, double y1, double x2, double y2, std::string_view colour) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1,
                         y1,
                         x2,
                         y2,
                         colour);
}

std::string Marker(const Series& series, double x, double y, std::string_view title) {
  const std::string inside = absl::StrCat("<title>", Escaped(title), "</title>");
  return series.square ? absl::StrFormat(
                             "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                             "fill=\"%s\">%s</rect>\n",
                             x - kRadius,
                             y - kRadius,
                             2 * kRadius,
                             2 * kRadius,
                             series.colour,
                             inside)
                       : absl::StrFormat(
                             "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\">%s</circle>\n",
                             x,
                             y,
                             kRadius,
                             series.colour,
                             inside);
}

std::string Axes(const Axis& x, const Axis& y) {
  std::string svg;
  for (double value = x.low; value <= x.high + x.step / 2; value += x.step) {
    svg += Line(x.At(value), y.begin, x.At(value), y.end, "#dddddd");
    svg += Text(x.At(value), y.begin + 18, "middle", absl::StrFormat("%g", value));
  }
  for (double value = y.low; value <= y.high + y.step / 2; value += y.step) {
    svg += Line(x.begin, y.At(value), x.end, y.At(value), "#dddddd");
    svg += Text(x.begin - 8, y.At(value) + 4, "end", absl::StrFormat("%g", value));
  }
  svg += Line(x.begin, y.begin, x.end, y.begin, "#222222");
  svg += Line(x.begin, y.begin, x.begin, y.end, "#222222");
  svg += Text((x.begin + x.end) / 2, y.begin + 44, "middle", "resident KV bytes, % of bf16");
  absl::StrAppend(&svg,
                  absl::StrFormat("<g transform=\"rotate(-90 20 %.1f)\">", (y.begin + y.end) / 2),
                  Text(20, (y.begin + y.end) / 2, "middle", "correct answers, %"),
                  "</g>\n");
  return svg;
}

std::string Ring(const Series& series, double x, double y) {
  return absl::StrCat(
      absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"none\" stroke=\"%s\" "
                      "stroke-width=\"2\"/>\n",
                      x,
                      y,
                      2 * kRadius,
                      series.colour),
      Text(x, y + 24, "middle", absl::StrCat(std::string(series.format), " chosen")));
}

std::string Points(const std::vector<PlotPoint>& points, const Axis& x, const Axis& y) {
  std::string svg;
  for (const PlotPoint& point : points) {
    const auto* series = std::ranges::find(kSeries, FormatOf(point.kv), &Series::format);
    if (series == kSeries.end()) {
      continue;
    }
    const double px = x.At(100.0 * point.bytes_share);
    const double py = y.At(Accuracy(point));
    svg += Marker(*series,
                  px,
                  py,
                  absl::StrFormat("%s: %d/%d correct, net loss %d, %.1f%% of the bytes",
                                  point.kv,
                                  point.correct,
                                  point.cases,
                                  point.net_loss,
                                  100.0 * point.bytes_share));
    svg += point.chosen ? Ring(*series, px, py) : "";
  }
  return svg;
}

// Of the formats that occur.
std::string Legend(const std::vector<PlotPoint>& points) {
  std::string svg;
  double x = kLeft;
  for (const Series& series : kSeries) {
    const bool occurs = std::ranges::any_of(
        points, [&](const PlotPoint& point) { return FormatOf(point.kv) == series.format; });
    if (occurs) {
      svg += Marker(series, x + 6, kTop - 16, series.format);
      svg += Text(x + 14, kTop - 12, "start", series.format);
      x += 24.0 + 8.0 * static_cast<double>(series.format.size());
    }
  }
  return svg;
}

}  // namespace

std::vector<PlotPoint> PlotPoints(const eval::PolicySummary& summary) {
  std::vector<PlotPoint> points;
  for (const std::string& policy : summary.policies) {
    const eval::PolicySums& sums = summary.sums.at(policy);
    points.push_back({.kv = policy,
                      .cases = sums.all.correct.weight,
                      .correct = std::llround(sums.all.correct.sum),
                      .net_loss = sums.loss.net(),
                      .bytes_share = sums.all.bytes_share.value()});
  }
  return points;
}

std::string QualitySvg(std::string_view title, const std::vector<PlotPoint>& points) {
  double most_bytes = 100.0;
  double least_correct = kLeastShown;
  for (const PlotPoint& point : points) {
    most_bytes = std::max(most_bytes, 100.0 * point.bytes_share);
    least_correct = std::min(least_correct, Accuracy(point));
  }
  const Axis x = MakeAxis(0.0, most_bytes, kLeft, kWidth - kRight);
  const Axis y = MakeAxis(least_correct, 100.0, kHeight - kBottom, kTop);
  return absl::StrCat(
      absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
                      "font-family=\"sans-serif\" font-size=\"12\">\n"
                      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                      kWidth,
                      kHeight),
      Text(kLeft, 20, "start", title),
      Legend(points),
      Axes(x, y),
      Points(points, x, y),
      "</svg>\n");
}

}  // namespace baton::lab
