#include "services/loadtest/scrape/scraper.h"

#include <httplib.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "services/loadtest/scrape/exposition.h"

namespace baton::loadtest {
namespace {

constexpr time_t kTimeoutSeconds = 5;
constexpr char kScheme[] = "http://";

GaugeSample GaugesOf(const Exposition& exposition, absl::Time at) {
  GaugeSample sample{.at = at, .values = {}};
  for (const auto& [name, value] : exposition.samples) {
    const std::string family = FamilyOf(name);
    const auto type = exposition.types.find(family);
    if (type != exposition.types.end() && type->second == "gauge" && family.starts_with("baton_")) {
      sample.values[family] += value;
    }
  }
  return sample;
}

}  // namespace

absl::StatusOr<std::string> FetchText(const std::string& url) {
  if (!url.starts_with(kScheme)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", url, "\" is not http://HOST:PORT/PATH of a service's metrics"));
  }
  const size_t slash = std::min(url.find('/', sizeof(kScheme) - 1), url.size());
  httplib::Client client(url.substr(0, slash));
  client.set_connection_timeout(kTimeoutSeconds);
  client.set_read_timeout(kTimeoutSeconds);
  const httplib::Result result = client.Get(slash == url.size() ? "/metrics" : url.substr(slash));
  if (!result || result->status != 200) {
    return absl::UnavailableError(absl::StrCat(
        url, ": ", result ? absl::StrCat("HTTP ", result->status) : to_string(result.error())));
  }
  return result->body;
}

Scraper::Scraper(std::vector<std::string> urls, absl::Duration interval) : interval_(interval) {
  for (std::string& url : urls) {
    targets_.emplace_back().service.url = std::move(url);
  }
  ScrapeAll();
  thread_ = std::thread([this] { Work(); });
}

Scraper::~Scraper() { Finish(); }

std::vector<ScrapedService> Scraper::Finish() {
  if (thread_.joinable()) {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
    ScrapeAll();
  }
  std::vector<ScrapedService> services;
  services.reserve(targets_.size());
  for (Target& target : targets_) {
    target.service.growth = CounterGrowth(target.first, target.last);
    services.push_back(target.service);
  }
  return services;
}

void Scraper::Work() {
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), interval_)) {
        return;
      }
    }
    ScrapeAll();
  }
}

void Scraper::ScrapeAll() {
  for (Target& target : targets_) {
    const absl::StatusOr<std::string> text = FetchText(target.service.url);
    if (!text.ok()) {
      ++target.service.failures;
      target.service.last_error = std::string(text.status().message());
      target.service.gauges.push_back({.at = absl::Now(), .values = {}});
      continue;
    }
    target.last = ParseExposition(*text);
    if (!target.scraped) {
      target.first = target.last;
      target.scraped = true;
    }
    target.service.gauges.push_back(GaugesOf(target.last, absl::Now()));
  }
}

}  // namespace baton::loadtest
