// The services' own metrics, before, during and after a run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "services/loadtest/scrape/exposition.h"

namespace baton::loadtest {

// Gauges of one moment, summed over their labels.
struct GaugeSample {
  absl::Time at;
  std::map<std::string, double> values;
};

// What one address exported.
struct ScrapedService {
  std::string url;
  // Counters and histograms: what they grew by from before to after.
  std::map<std::string, double> growth;
  // One per scrape, without values where it failed.
  std::vector<GaugeSample> gauges;
  // Scrapes that failed, and why the last of them did.
  int failures = 0;
  std::string last_error;
};

// The body of `url` (http://host:port/path); kUnavailable when it can't be had, kInvalidArgument
// when it is no such address. Blocks for at most 5 s.
absl::StatusOr<std::string> FetchText(const std::string& url);

// Scrapes addresses at intervals on a thread of its own. Thread-safe.
class Scraper {
 public:
  // Scrapes once before it returns. Of gauges, families that
  // begin with "baton_" are kept.
  Scraper(std::vector<std::string> urls, absl::Duration interval);
  ~Scraper();
  Scraper(const Scraper&) = delete;
  Scraper& operator=(const Scraper&) = delete;

  // Scrapes a last time and stops.
  std::vector<ScrapedService> Finish();

 private:
  struct Target {
    ScrapedService service;
    bool scraped = false;
    Exposition first;
    Exposition last;
  };

  void Work();
  void ScrapeAll();

  const absl::Duration interval_;
  std::vector<Target> targets_;  // of the constructor, then the thread, then Finish
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::loadtest
