#include "services/loadtest/measure/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "services/loadtest/measure/distribution.h"
#include "services/loadtest/measure/request_figures.h"
#include "services/loadtest/stream/request_record.h"

namespace baton::loadtest {
namespace {

using nlohmann::ordered_json;

constexpr double kMaxRows = 75;
constexpr std::array kBucketSeconds = {
    0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0};

struct Row {
  int64_t scheduled = 0;
  int64_t sent = 0;
  int64_t ended = 0;
  int64_t failed = 0;
  int64_t open = 0;
  int64_t tokens = 0;
  Distribution ttft;
  Distribution itl;
};

// Opening and closing moments in order, closing first.
std::vector<std::pair<absl::Duration, int>> Edges(const std::vector<RequestRecord>& records) {
  std::vector<std::pair<absl::Duration, int>> edges;
  edges.reserve(2 * records.size());
  for (const RequestRecord& record : records) {
    edges.emplace_back(record.sent, 1);
    edges.emplace_back(record.end, -1);
  }
  std::ranges::sort(edges);
  return edges;
}

ordered_json QuantileOrNull(const Distribution& values, double q) {
  return values.count() > 0 ? ordered_json(values.Quantile(q)) : ordered_json();
}

double Length(const std::vector<RequestRecord>& records) {
  absl::Duration end;
  for (const RequestRecord& record : records) {
    end = std::max(end, record.end);
  }
  return absl::ToDoubleSeconds(end);
}

class Rows {
 public:
  explicit Rows(double length) {
    const auto fits = [length](double bucket) { return length / bucket < kMaxRows; };
    const auto bucket = std::ranges::find_if(kBucketSeconds, fits);
    bucket_ = bucket == kBucketSeconds.end() ? length / (kMaxRows - 1) : *bucket;
    rows_.resize(static_cast<size_t>(length / bucket_) + 1);
  }

  Row& At(double seconds) {
    const auto index = static_cast<size_t>(std::max(seconds, 0.0) / bucket_);
    return rows_[std::min(index, rows_.size() - 1)];
  }
  Row& At(absl::Duration at) { return At(absl::ToDoubleSeconds(at)); }

  void Add(const RequestRecord& record) {
    ++At(record.scheduled).scheduled;
    Row& sent = At(record.sent);
    ++sent.sent;
    const bool undisturbed = record.fault == Fault::kNone;
    if (const auto ttft = TtftMs(record); undisturbed && ttft.has_value()) {
      sent.ttft.Add(*ttft);
    }
    Row& end = At(record.end);
    ++end.ended;
    end.failed += !record.ok() && record.fault != Fault::kCancel ? 1 : 0;
    const double start = absl::ToDoubleSeconds(record.sent);
    for (size_t i = 0; i < record.messages.size(); ++i) {
      Row& row = At(start + record.messages[i].after_us / 1e6);
      row.tokens += record.messages[i].tokens;
      if (i > 0 && undisturbed) {
        row.itl.Add((record.messages[i].after_us - record.messages[i - 1].after_us) / 1e3);
      }
    }
  }

  void SetOpen(const std::vector<RequestRecord>& records) {
    int64_t open = 0;
    size_t row = 0;
    for (const auto& [at, step] : Edges(records)) {
      const auto reached =
          std::min(static_cast<size_t>(absl::ToDoubleSeconds(at) / bucket_), rows_.size() - 1);
      for (; row < reached; ++row) {
        rows_[row + 1].open = open;
      }
      open += step;
      rows_[row].open = std::max(rows_[row].open, open);
    }
  }

  ordered_json ToJson() const {
    ordered_json rows = ordered_json::array();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      rows.push_back({{"t", static_cast<double>(i) * bucket_},
                      {"scheduled", row.scheduled},
                      {"sent", row.sent},
                      {"ended", row.ended},
                      {"failed", row.failed},
                      {"open", row.open},
                      {"tokens", row.tokens},
                      {"ttft_p50", QuantileOrNull(row.ttft, 0.5)},
                      {"ttft_p99", QuantileOrNull(row.ttft, 0.99)},
                      {"itl_p50", QuantileOrNull(row.itl, 0.5)},
                      {"itl_p99", QuantileOrNull(row.itl, 0.99)}});
    }
    return {{"bucket_s", bucket_}, {"rows", std::move(rows)}};
  }

 private:
  double bucket_ = 1.0;
  std::vector<Row> rows_;
};

}  // namespace

ordered_json Timeline(const std::vector<RequestRecord>& records) {
  Rows rows(Length(records));
  for (const RequestRecord& record : records) {
    rows.Add(record);
  }
  rows.SetOpen(records);
  return rows.ToJson();
}

int64_t MaxOpen(const std::vector<RequestRecord>& records) {
  int64_t open = 0;
  int64_t most = 0;
  for (const auto& [at, step] : Edges(records)) {
    open += step;
    most = std::max(most, open);
  }
  return most;
}

}  // namespace baton::loadtest
