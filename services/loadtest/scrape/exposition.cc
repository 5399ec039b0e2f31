#include "services/loadtest/scrape/exposition.h"

#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace baton::loadtest {
namespace {

// "name{labels} value [timestamp]"; a label value may hold spaces and braces.
void TakeSample(absl::string_view line, Exposition* exposition) {
  if (absl::ascii_isalpha(static_cast<unsigned char>(line.front())) == 0 && line.front() != '_') {
    return;
  }
  const size_t brace = line.find('{');
  const size_t name_end = brace == absl::string_view::npos ? line.find(' ') : line.rfind('}') + 1;
  if (name_end == absl::string_view::npos || name_end == 0 || name_end >= line.size()) {
    return;
  }
  const std::vector<absl::string_view> fields =
      absl::StrSplit(line.substr(name_end), ' ', absl::SkipEmpty());
  double value = 0.0;
  if (!fields.empty() && absl::SimpleAtod(fields.front(), &value) && std::isfinite(value)) {
    exposition->samples[std::string(line.substr(0, name_end))] = value;
  }
}

bool OnlyGrows(const std::string& family, const std::map<std::string, std::string>& types) {
  std::string base = family;
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    if (family.ends_with(suffix)) {
      base = family.substr(0, family.size() - std::string(suffix).size());
    }
  }
  const auto own = types.find(family);
  if (own != types.end()) {
    return own->second == "counter";
  }
  const auto type = types.find(base);
  return type != types.end() && type->second == "histogram";
}

}  // namespace

Exposition ParseExposition(std::string_view text) {
  Exposition exposition;
  const std::string whole(text);
  for (const absl::string_view line : absl::StrSplit(whole, '\n', absl::SkipWhitespace())) {
    if (!absl::StartsWith(line, "#")) {
      TakeSample(line, &exposition);
      continue;
    }
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() == 4 && words[1] == "TYPE") {
      exposition.types[words[2]] = words[3];
    }
  }
  return exposition;
}

std::string FamilyOf(std::string_view sample) {
  return std::string(sample.substr(0, sample.find('{')));
}

std::string LabelOf(std::string_view sample, std::string_view label) {
  for (const char before : {'{', ','}) {
    const std::string key = before + std::string(label) + "=\"";
    if (const size_t found = sample.find(key); found != std::string_view::npos) {
      const std::string_view value = sample.substr(found + key.size());
      return std::string(value.substr(0, value.find('"')));
    }
  }
  return "";
}

std::map<std::string, double> CounterGrowth(const Exposition& before, const Exposition& after) {
  std::map<std::string, double> growth;
  for (const auto& [name, value] : after.samples) {
    if (!OnlyGrows(FamilyOf(name), after.types)) {
      continue;
    }
    const auto old = before.samples.find(name);
    const double begin = old == before.samples.end() || old->second > value ? 0.0 : old->second;
    if (value != begin) {
      growth[name] = value - begin;
    }
  }
  return growth;
}

double SumOf(const std::map<std::string, double>& samples, std::string_view family) {
  double sum = 0.0;
  for (auto it = samples.lower_bound(std::string(family));
       it != samples.end() && it->first.starts_with(family);
       ++it) {
    if (FamilyOf(it->first) == family) {
      sum += it->second;
    }
  }
  return sum;
}

}  // namespace baton::loadtest
