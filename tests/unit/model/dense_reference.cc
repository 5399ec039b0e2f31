#include "tests/unit/model/dense_reference.h"

#include <cmath>
#include <string>

namespace baton::model {
namespace {

using Vector = std::vector<double>;
using Rows = std::vector<Vector>;  // [tokens][width]

class Dense {
 public:
  Dense(const checkpoint::Checkpoint& checkpoint, const std::vector<int32_t>& tokens)
      : checkpoint_(checkpoint), config_(checkpoint.config()), tokens_(tokens) {}

  DenseResult Run();

 private:
  Vector Read(const std::string& name, std::vector<int64_t> shape) const {
    size_t count = 1;
    for (const int64_t extent : shape) {
      count *= static_cast<size_t>(extent);
    }
    const auto buffer = checkpoint_.Read(name, shape, kernels::DType::kF32);
    const float* values = buffer.value().as<float>();
    return Vector(values, values + count);
  }

  Rows Linear(const Rows& x, const std::string& name, int32_t out, int32_t in, bool bias) const {
    const Vector weight = Read(name + ".weight", {out, in});
    const Vector offset = bias ? Read(name + ".bias", {out}) : Vector(static_cast<size_t>(out), 0);
    Rows result;
    for (const Vector& row : x) {
      Vector y(offset);
      for (size_t o = 0; o < y.size(); ++o) {
        for (size_t i = 0; i < row.size(); ++i) {
          y[o] += row[i] * weight[o * row.size() + i];
        }
      }
      result.push_back(y);
    }
    return result;
  }

  // RMSNorm over consecutive runs of `dim` elements.
  Rows Norm(const Rows& x, const std::string& name, int32_t dim) const {
    const Vector weight = Read(name, {dim});
    Rows result = x;
    for (Vector& row : result) {
      for (size_t begin = 0; begin < row.size(); begin += weight.size()) {
        double sum = 0;
        for (size_t i = 0; i < weight.size(); ++i) {
          sum += row[begin + i] * row[begin + i];
        }
        const double scale = 1.0 / std::sqrt(sum / dim + double{config_.rms_norm_eps});
        for (size_t i = 0; i < weight.size(); ++i) {
          row[begin + i] *= scale * weight[i];
        }
      }
    }
    return result;
  }

  void Rotate(Rows& x) const {
    const auto half = static_cast<size_t>(config_.head_dim / 2);
    for (size_t p = 0; p < x.size(); ++p) {
      for (size_t head = 0; head < x[p].size(); head += 2 * half) {
        for (size_t i = 0; i < half; ++i) {
          const double angle =
              static_cast<double>(p) *
              std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / config_.head_dim);
          const double a = x[p][head + i];
          const double b = x[p][head + half + i];
          x[p][head + i] = a * std::cos(angle) - b * std::sin(angle);
          x[p][head + half + i] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  }

  Rows Attend(const Rows& q, const Rows& k, const Rows& v, int32_t window) const;
  void Layer(int32_t layer, Rows& x, const Rows& swiftkv_input, DenseResult& result) const;

  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::ModelConfig& config_;
  const std::vector<int32_t>& tokens_;
};

Rows Dense::Attend(const Rows& q, const Rows& k, const Rows& v, int32_t window) const {
  const auto dim = static_cast<size_t>(config_.head_dim);
  const auto group = static_cast<size_t>(config_.num_heads / config_.num_kv_heads);
  Rows out(q.size(), Vector(q[0].size(), 0));
  for (size_t p = 0; p < q.size(); ++p) {
    const size_t first =
        window > 0 && p + 1 > static_cast<size_t>(window) ? p + 1 - static_cast<size_t>(window) : 0;
    for (size_t head = 0; head < static_cast<size_t>(config_.num_heads); ++head) {
      const size_t kv = head / group * dim;
      Vector weights;
      double total = 0;
      for (size_t t = first; t <= p; ++t) {
        double score = 0;
        for (size_t i = 0; i < dim; ++i) {
          score += q[p][head * dim + i] * k[t][kv + i];
        }
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
        total += weights.back();
      }
      for (size_t t = first; t <= p; ++t) {
        for (size_t i = 0; i < dim; ++i) {
          out[p][head * dim + i] += weights[t - first] / total * v[t][kv + i];
        }
      }
    }
  }
  return out;
}

void Add(Rows& x, const Rows& y) {
  for (size_t p = 0; p < x.size(); ++p) {
    for (size_t i = 0; i < x[p].size(); ++i) {
      x[p][i] += y[p][i];
    }
  }
}

void Dense::Layer(int32_t layer, Rows& x, const Rows& swiftkv_input, DenseResult& result) const {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const int32_t hidden = config_.hidden_size;
  const int32_t query_width = config_.num_heads * config_.head_dim;
  const int32_t kv_width = config_.num_kv_heads * config_.head_dim;
  const int32_t full = config_.num_key_value_layers;
  const bool upper = layer >= full;
  const std::string suffix = upper ? "_swiftkv" : "";
  const int32_t group = config_.key_value_group_size;
  const int32_t leader = upper ? full + (layer - full) / group * group : layer;
  const std::string kv_prefix = "model.layers." + std::to_string(leader) + ".self_attn.";

  const Rows normed = Norm(x, prefix + "input_layernorm.weight", hidden);
  const Rows& kv_input = upper ? swiftkv_input : normed;
  const bool bias = config_.qkv_bias;
  Rows q = Linear(normed, prefix + "self_attn.q_proj" + suffix, query_width, hidden, bias);
  Rows k = Linear(kv_input, kv_prefix + "k_proj" + suffix, kv_width, hidden, bias);
  const Rows v = Linear(kv_input, kv_prefix + "v_proj" + suffix, kv_width, hidden, bias);
  if (config_.qk_norm) {
    q = Norm(q, prefix + "self_attn.q_norm" + suffix + ".weight", config_.head_dim);
    k = Norm(k, kv_prefix + "k_norm" + suffix + ".weight", config_.head_dim);
  }
  Rotate(q);
  Rotate(k);
  const Rows attended = Attend(q, k, v, config_.sliding_window[static_cast<size_t>(layer)]);
  Add(x, Linear(attended, prefix + "self_attn.o_proj", hidden, query_width, config_.o_bias));
  const Rows mlp_in = Norm(x, prefix + "post_attention_layernorm.weight", hidden);
  const int32_t width = config_.intermediate_size;
  Rows gate = Linear(mlp_in, prefix + "mlp.gate_proj", width, hidden, config_.mlp_bias);
  const Rows up = Linear(mlp_in, prefix + "mlp.up_proj", width, hidden, config_.mlp_bias);
  for (size_t p = 0; p < gate.size(); ++p) {
    for (size_t i = 0; i < gate[p].size(); ++i) {
      gate[p][i] = gate[p][i] / (1.0 + std::exp(-gate[p][i])) * up[p][i];
    }
  }
  Add(x, Linear(gate, prefix + "mlp.down_proj", hidden, width, config_.mlp_bias));
  result.keys.push_back(k);
  result.values.push_back(v);
}

DenseResult Dense::Run() {
  const Vector embedding =
      Read("model.embed_tokens.weight", {config_.vocab_size, config_.hidden_size});
  const auto hidden = static_cast<ptrdiff_t>(config_.hidden_size);
  Rows x;
  for (const int32_t token : tokens_) {
    const auto row = embedding.begin() + token * hidden;
    x.emplace_back(row, row + hidden);
  }
  DenseResult result;
  Rows swiftkv_input;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    if (config_.swiftkv() && layer == config_.num_key_value_layers) {
      swiftkv_input = Norm(x, "model.norm_swiftkv.weight", config_.hidden_size);
    }
    Layer(layer, x, swiftkv_input, result);
  }
  const Rows normed = Norm(x, "model.norm.weight", config_.hidden_size);
  const std::string head = config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
  result.logits = Linear(normed, head, config_.vocab_size, config_.hidden_size, false);
  return result;
}

}  // namespace

DenseResult DenseForward(const checkpoint::Checkpoint& checkpoint,
                         const std::vector<int32_t>& tokens) {
  return Dense(checkpoint, tokens).Run();
}

}  // namespace baton::model
