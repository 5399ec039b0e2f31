// Prometheus' text format, read.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace baton::loadtest {

// Samples of one scrape by full name with labels, as `baton_kv_pages{state="free"}`.
struct Exposition {
  std::map<std::string, double> samples;
  // Types by family: "counter", "gauge", "histogram", ...
  std::map<std::string, std::string> types;
};

// Lines that are no samples of finite values are passed over: a scrape is for information.
Exposition ParseExposition(std::string_view text);

// The family of a sample: its name without labels.
std::string FamilyOf(std::string_view sample);

// The value of a label of a sample, as it is written; empty without it.
std::string LabelOf(std::string_view sample, std::string_view label);

// Growth of every counter, and of the sums, counts and buckets of histograms, between two scrapes;
// samples that did not change are left out. One that fell, because its process was started again,
// counts from 0.
std::map<std::string, double> CounterGrowth(const Exposition& before, const Exposition& after);

// The sum of the samples of `family` over its labels; 0 without any.
double SumOf(const std::map<std::string, double>& samples, std::string_view family);

}  // namespace baton::loadtest
