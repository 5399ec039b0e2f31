#include "tests/gpu/bench/model_cost.h"

#include <cstdint>

namespace baton::model {

double ModelCost::UpperLayer() const {
  const double hidden = config_.hidden_size;
  return 2.0 * hidden * query_width() + 3.0 * hidden * config_.intermediate_size;
}

double ModelCost::FullLayer() const {
  return UpperLayer() + 2.0 * config_.hidden_size * kv_width();
}

double ModelCost::FanOut() const {
  const double groups = config_.num_kv_cache_layers() - config_.num_key_value_layers;
  return 2.0 * groups * config_.hidden_size * kv_width();
}

double ModelCost::PrefillOperations(int64_t sequences, int64_t tokens) const {
  const auto last_rows = static_cast<double>(sequences);
  const auto keys = static_cast<double>(tokens);  // of a last row
  const double rows = last_rows * keys;
  const double linear = rows * (full_layers() * FullLayer() + FanOut()) +
                        last_rows * (upper_layers() * UpperLayer() + Head());
  const double products = full_layers() * rows * (keys + 1.0) / 2.0 +  // of a query and a key
                          upper_layers() * last_rows * keys;
  return 2.0 * linear + 4.0 * query_width() * products;
}

double ModelCost::WeightBytes() const {
  return 2.0 * (full_layers() * FullLayer() + upper_layers() * UpperLayer() + FanOut() + Head());
}

double ModelCost::KvBytes(int64_t sequences, int64_t tokens) const {
  const double layers = config_.num_layers;  // each reads, whether or not it shares what it reads
  return 2.0 * 2.0 * kv_width() * layers * static_cast<double>(sequences) *
         static_cast<double>(tokens);
}

}  // namespace baton::model
