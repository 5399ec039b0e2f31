// Drawings of a report, as SVG elements.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace baton::loadtest {

struct Series {
  std::string name;
  std::string color;  // of CSS
  // From left to right; one whose y is not a number interrupts the line.
  std::vector<std::pair<double, double>> points;
  bool dashed = false;
};

// A moment that a chart over time marks.
struct Mark {
  double at = 0.0;
  std::string label;
};

struct ChartLabels {
  std::string title;
  std::string x;
  std::string y;
  bool log_x = false;  // points with x <= 0 are drawn at the left edge
  std::vector<Mark> marks = {};
};

// Lines over common axes that begin at 0 (a logarithmic one at the smallest value) and end at a
// round number. Without any point a chart that says so.
std::string LineChart(const ChartLabels& labels, const std::vector<Series>& series);

// One horizontal bar of parts side by side.
struct Bar {
  std::string name;
  struct Part {
    std::string name;
    std::string color;
    double value = 0.0;
  };
  std::vector<Part> parts;
};

// Bars of one scale; `unit` stands behind numbers.
std::string BarChart(const std::string& title,
                     const std::string& unit,
                     const std::vector<Bar>& bars);

// Text as it may stand in HTML and SVG.
std::string Escape(const std::string& text);

// "0.25", "12", "3.4k", "1.2M": three digits are enough to compare.
std::string ShortNumber(double value);

// The same, but whole numbers in full: for tables.
std::string TableNumber(double value);

}  // namespace baton::loadtest
