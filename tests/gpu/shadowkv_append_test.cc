// What shadowkv_append and shadowkv_append_joint write on the device against the reference, over
// the reference's prompts: every byte, but for coefficients, which may round the other way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/core/dtype.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/half.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/support/device_shadowkv.h"
#include "tests/gpu/support/gpu_test.h"
#include "tests/kernels/support/backends.h"
#include "tests/kernels/support/shadowkv_joint_problem.h"
#include "tests/kernels/support/shadowkv_problem.h"

namespace baton::kernels::cuda {
namespace {

// Coefficients of a block of the tail: up to the rounding of their code, and of the sums that int8
// codes are scaled by.
void ExpectSameCoefficients(const ShadowKvConfig& config,
                            const std::byte* got,
                            const std::byte* want) {
  const int64_t count = kShadowKvBlockTokens * config.rank;
  if (config.int8_coefficients) {
    const auto* got_codes = reinterpret_cast<const int8_t*>(got);
    const auto* want_codes = reinterpret_cast<const int8_t*>(want);
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_LE(std::abs(got_codes[i] - want_codes[i]), 1) << "coefficient " << i;
    }
    const size_t scales = ShadowKvCoefficientLayout(config, kShadowKvBlockTokens).scales;
    for (int64_t i = 0; i < config.rank; ++i) {
      const float got_scale = F16ToF32(reinterpret_cast<const uint16_t*>(got + scales)[i]);
      const float want_scale = F16ToF32(reinterpret_cast<const uint16_t*>(want + scales)[i]);
      ASSERT_NEAR(got_scale, want_scale, 0x1p-10 * want_scale) << "scale " << i;
    }
    return;
  }
  const bool wide = config.dtype == DType::kF32;
  const auto number = [&](const std::byte* data, int64_t i) {
    return wide ? reinterpret_cast<const float*>(data)[i]
                : BF16ToF32(reinterpret_cast<const uint16_t*>(data)[i]);
  };
  const float relative = wide ? 1e-5f : 0x1p-7f;
  for (int64_t token = 0; token < kShadowKvBlockTokens; ++token) {
    const int64_t first = token * config.rank;
    double squares = 0.0;
    for (int64_t i = first; i < first + config.rank; ++i) {
      squares += double{number(want, i)} * double{number(want, i)};
    }
    // Keys that are multiplied as two bf16 numbers each are up to 2^-18 off in every element, which
    // is the same share of a token's norm at the very most and a seventh of it in four seeds.
    const double absolute = wide ? 1e-5 : 0x1p-19 * std::sqrt(squares);
    for (int64_t i = first; i < first + config.rank; ++i) {
      ASSERT_NEAR(number(got, i), number(want, i), relative * std::fabs(number(want, i)) + absolute)
          << "coefficient " << i << ", " << SeedMessage();
    }
  }
}

void ExpectSameBytes(std::span<const std::byte> got,
                     std::span<const std::byte> want,
                     size_t begin,
                     size_t end) {
  for (size_t i = begin; i < end; ++i) {
    ASSERT_EQ(got[i], want[i]) << "byte " << i << " of " << begin << " to " << end << ", "
                               << SeedMessage();
  }
}

void ExpectSameTail(const ShadowKvSequence& host, std::span<const std::byte> got) {
  const ShadowKvTailLayout tail(*host.layout, host.max_generated);
  const std::span<const std::byte> want(host.tail, tail.bytes);
  ASSERT_EQ(got.size(), tail.bytes);
  ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(got, want, 0, tail.blocks));
  for (int64_t block = 0; block < tail.block_count; ++block) {
    const size_t begin = tail.block_begin(block);
    if (block < tail.BlocksAt(int64_t{host.position} + 1) && !tail.config.joint) {
      ASSERT_NO_FATAL_FAILURE(
          ExpectSameCoefficients(tail.config, got.data() + begin, want.data() + begin));
    }
    ASSERT_NO_FATAL_FAILURE(
        ExpectSameBytes(got, want, begin + tail.block.landmarks, begin + tail.block.bytes));
  }
}

// Sequences that get a token each in one call.
class Batch {
 public:
  Batch(const OpTable& ops, const ExecContext& context, const std::vector<ShadowKvShape>& shapes)
      : ops_(ops), context_(context) {
    for (const ShadowKvShape& shape : shapes) {
      host_contexts_.push_back(std::make_unique<ShadowKvContext>(ReferenceOps(), 1, shape));
      problems_.push_back(
          std::make_unique<ShadowKvProblem>(ReferenceOps(), **host_contexts_.back(), shape));
      device_.push_back(std::make_unique<DeviceShadowKv>(problems_.back()->Sequence()));
    }
    const ShadowKvProblem& longest =
        **std::max_element(problems_.begin(), problems_.end(), [](const auto& a, const auto& b) {
          return a->rope().positions < b->rope().positions;
        });
    rope_ = std::make_unique<DeviceShadowKvRope>(longest.rope(), longest.layout().config.head_dim);
    if (const float* bias = problems_.front()->key_bias(); bias != nullptr) {
      bias_ = std::make_unique<DeviceArray<float>>(std::span(bias, static_cast<size_t>(width())));
    }
  }

  // Appends the next token of all on the host, and on the device in one call whose rows are
  // `stride` apart.
  void Append(int64_t stride) {
    for (size_t s = 0; s < problems_.size(); ++s) {
      problems_[s]->Append(ReferenceOps(), **host_contexts_[s]);
    }
    std::vector<float> k(problems_.size() * static_cast<size_t>(stride));
    std::vector<float> v(k.size());
    std::vector<ShadowKvSequence> sequences;
    for (size_t s = 0; s < problems_.size(); ++s) {
      const ShadowKvProblem& problem = *problems_[s];
      // Rows come in any order.
      const auto row = static_cast<int32_t>(problems_.size() - 1 - s);
      std::copy_n(problem.key(problem.tokens() - 1), width(), k.begin() + row * stride);
      std::copy_n(problem.value(problem.tokens() - 1), width(), v.begin() + row * stride);
      sequences.push_back(device_[s]->get(problem.Sequence().position));
      sequences.back().row = row;
    }
    AppendRows(k, v, stride, sequences);
  }

  // Appends the next `count` tokens of the first sequence, on the device in one call.
  void AppendTogether(int64_t count) {
    ShadowKvProblem& problem = *problems_.front();
    const int64_t first = problem.tokens();
    std::vector<ShadowKvSequence> sequences;
    for (int64_t i = 0; i < count; ++i) {
      problem.Append(ReferenceOps(), **host_contexts_.front());
      sequences.push_back(device_.front()->get(static_cast<int32_t>(first + i)));
      sequences.back().row = static_cast<int32_t>(i);
    }
    const int64_t elements = count * width();
    AppendRows({problem.key(first), problem.key(first) + elements},
               {problem.value(first), problem.value(first) + elements},
               width(),
               sequences);
  }

  size_t size() const { return problems_.size(); }
  int64_t width() const { return problems_.front()->layout().config.width(); }
  ShadowKvSequence host(size_t s) const { return problems_[s]->Sequence(); }
  std::vector<std::byte> tail(size_t s) const { return device_[s]->tail(); }
  std::span<const std::byte> value_tail(size_t s) const { return device_[s]->value_tail(); }
  const ShadowKvProblem& problem(size_t s) const { return *problems_[s]; }
  int64_t blocks(size_t s) const {
    return problems_[s]->tail_layout().BlocksAt(problems_[s]->tokens());
  }

 private:
  void AppendRows(const std::vector<float>& k,
                  const std::vector<float>& v,
                  int64_t stride,
                  const std::vector<ShadowKvSequence>& sequences) {
    const DeviceArray<uint16_t> device_k = Activations(k);
    const DeviceArray<uint16_t> device_v = Activations(v);
    const DeviceArray<ShadowKvSequence> device_sequences(sequences);
    ASSERT_TRUE(ops_.shadowkv_append(context_,
                                     {.k = device_k.data(),
                                      .k_stride = stride,
                                      .v = device_v.data(),
                                      .v_stride = stride,
                                      .sequences = device_sequences.data(),
                                      .num_sequences = static_cast<int64_t>(sequences.size()),
                                      .rope = rope_->get(),
                                      .key_bias = bias_ == nullptr ? nullptr : bias_->data()})
                    .ok());
    ASSERT_TRUE(context_.queue->Wait().ok());
  }

  const OpTable& ops_;
  const ExecContext& context_;
  std::vector<std::unique_ptr<ShadowKvContext>> host_contexts_;
  std::vector<std::unique_ptr<ShadowKvProblem>> problems_;
  std::vector<std::unique_ptr<DeviceShadowKv>> device_;
  std::unique_ptr<DeviceShadowKvRope> rope_;
  std::unique_ptr<DeviceArray<float>> bias_;
};

class ShadowKvAppendGpuTest : public GpuTest {
 protected:
  // Appends to all and compares when a block may have been coded.
  void Check(const std::vector<ShadowKvShape>& shapes) const {
    Batch batch(ops(), context(), shapes);
    for (int64_t step = 0; step < shapes.front().generated_tokens; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      const int64_t padding = step % 3 == 0 ? 0 : step % 3 == 1 ? 8 : 3;
      ASSERT_NO_FATAL_FAILURE(batch.Append(batch.width() + padding));
      for (size_t s = 0; s < batch.size(); ++s) {
        if (step % 31 == 0 || step + 1 == shapes.front().generated_tokens) {
          SCOPED_TRACE(absl::StrCat("sequence ", s));
          ASSERT_NO_FATAL_FAILURE(ExpectSameTail(batch.host(s), batch.tail(s)));
          const std::span<const std::byte> values = batch.value_tail(s);
          const std::span<const std::byte> want(batch.host(s).value_tail, values.size());
          ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(values, want, 0, values.size()));
        }
      }
    }
    EXPECT_GE(batch.blocks(0), 1);
  }
};

ShadowKvShape Short(int64_t prompt_tokens) {
  ShadowKvShape shape;
  shape.config.rank = 20;
  shape.prompt_tokens = prompt_tokens;
  shape.generated_tokens = 130;
  return shape;
}

ShadowKvShape Long(ShadowKvGenerated generated) {
  ShadowKvShape shape = Short(133);
  shape.generated_tokens = 333;
  shape.config.generated = generated;
  return shape;
}

// As an extension does: up to 64 of a call, of which the last may make a block due.
TEST_F(ShadowKvAppendGpuTest, ManyTokensOfASequenceInACall) {
  for (const ShadowKvGenerated generated :
       {ShadowKvGenerated::kBlocks, ShadowKvGenerated::kExact}) {
    SCOPED_TRACE(absl::StrCat("generated ", static_cast<int>(generated)));
    const ShadowKvShape shape = Long(generated);
    Batch batch(ops(), context(), {shape});
    const ShadowKvTailLayout tail = batch.problem(0).tail_layout();
    const int64_t end = shape.prompt_tokens + shape.generated_tokens;
    while (batch.problem(0).tokens() < end) {
      const int64_t first = batch.problem(0).tokens();
      ASSERT_NO_FATAL_FAILURE(batch.AppendTogether(tail.EndOfAppend(first, end) - first));
      SCOPED_TRACE(absl::StrCat("from token ", first));
      ASSERT_NO_FATAL_FAILURE(ExpectSameTail(batch.host(0), batch.tail(0)));
    }
  }
}

TEST_F(ShadowKvAppendGpuTest, ManyTokensInACallAreCodedAsOneByOne) {
  for (const ShadowKvGenerated generated :
       {ShadowKvGenerated::kBlocks, ShadowKvGenerated::kExact}) {
    SCOPED_TRACE(absl::StrCat("generated ", static_cast<int>(generated)));
    const ShadowKvShape shape = Long(generated);
    Batch together(ops(), context(), {shape});
    Batch alone(ops(), context(), {shape});
    const ShadowKvTailLayout tail = together.problem(0).tail_layout();
    const int64_t end = shape.prompt_tokens + shape.generated_tokens;
    while (together.problem(0).tokens() < end) {
      const int64_t first = together.problem(0).tokens();
      const int64_t count = tail.EndOfAppend(first, end) - first;
      ASSERT_NO_FATAL_FAILURE(together.AppendTogether(count));
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_NO_FATAL_FAILURE(alone.Append(alone.width()));
      }
      const std::vector<std::byte> want = alone.tail(0);
      SCOPED_TRACE(absl::StrCat("from token ", first));
      ASSERT_NO_FATAL_FAILURE(ExpectSameBytes(together.tail(0), want, 0, want.size()));
    }
  }
}

TEST_F(ShadowKvAppendGpuTest, EverySelector) {
  for (const ShadowKvSelector selector :
       {ShadowKvSelector::kMean, ShadowKvSelector::kBounds, ShadowKvSelector::kQ2}) {
    SCOPED_TRACE(absl::StrCat("selector ", static_cast<int>(selector)));
    ShadowKvShape shape = Short(133);
    shape.config.selector = selector;
    Check({shape});
  }
}

TEST_F(ShadowKvAppendGpuTest, LandmarksInCodes) {
  for (const int32_t dim : {8, 64, 72, 128}) {
    SCOPED_TRACE(absl::StrCat("heads of ", dim));
    ShadowKvShape shape = Short(133);
    shape.config.head_dim = dim;
    shape.config.rank = 7;
    shape.config.landmark_bits = 8;
    Check({shape});
  }
}

TEST_F(ShadowKvAppendGpuTest, EveryCodeAndHeadDim) {
  for (const int32_t bits : {2, 4, 8}) {
    for (const int32_t dim : {8, 64, 72, 128}) {
      SCOPED_TRACE(absl::StrCat(bits, " bits, heads of ", dim));
      ShadowKvShape shape = Short(90);
      shape.config.kv_heads = dim == 128 ? 1 : 2;
      shape.config.head_dim = dim;
      shape.config.rank = 7;
      shape.config.value_bits = bits;
      shape.config.chunk_tokens = dim == 72 ? 1 : bits;
      shape.config.selector = bits == 4 ? ShadowKvSelector::kQ2 : ShadowKvSelector::kBounds;
      shape.config.int8_coefficients = bits != 8;
      shape.heads = shape.config.kv_heads;
      shape.key_bias = 1.0f;
      Check({shape});
    }
  }
}

TEST_F(ShadowKvAppendGpuTest, ValuesApartGoToMemoryOfTheHost) {
  for (const int32_t bits : {2, 4, 8, 16}) {
    SCOPED_TRACE(absl::StrCat(bits, " bits"));
    ShadowKvShape shape = Short(133);
    shape.config.value_bits = bits;
    shape.config.values_apart = true;
    Check({shape, Short(97)});
  }
}

// They differ in all but heads, and their blocks are due in different steps.
TEST_F(ShadowKvAppendGpuTest, SequencesOfOneCallDoNotMeet) {
  ShadowKvShape clusters = Short(140);
  clusters.config.selector = ShadowKvSelector::kQ2;
  clusters.config.value_clusters = 40;
  ShadowKvShape narrow = Short(75);
  narrow.config.rank = 3;
  narrow.config.chunk_tokens = 1;
  narrow.config.local_chunks = 40;
  narrow.config.int8_coefficients = true;
  ShadowKvShape exact = Short(101);
  exact.config.generated = ShadowKvGenerated::kExact;
  ShadowKvShape tiny = Short(1);
  tiny.config.rank = 1;
  const std::vector<ShadowKvShape> shapes = {clusters, narrow, exact, tiny, Short(97), clusters};
  Check(shapes);
  Batch together(ops(), context(), shapes);
  Batch alone(ops(), context(), {narrow});
  for (int64_t step = 0; step < narrow.generated_tokens; ++step) {
    ASSERT_NO_FATAL_FAILURE(together.Append(together.width()));
    ASSERT_NO_FATAL_FAILURE(alone.Append(alone.width()));
  }
  EXPECT_EQ(together.tail(1), alone.tail(0));
}

TEST_F(ShadowKvAppendGpuTest, AddsNothingToNoSequences) {
  EXPECT_TRUE(ops().shadowkv_append(context(), {}).ok());
}

// Joint coefficients of a sequence's tail after one call, of poisoned bytes before.
class JointAppend {
 public:
  JointAppend(const ShadowKvProblem& wide, const ShadowKvJointProblem& joint)
      : rope_(wide.rope(), joint.layout().config.head_dim),
        coefficients_(
            DeviceArray<std::byte>::Poisoned(ShadowKvBlockSizes(joint.Sequence(0)).joint_tail)) {
    const int64_t width = joint.layout().config.width();
    std::vector<ShadowKvSequence> layers;
    std::vector<const float*> biases;
    for (int64_t i = 0; i < joint.layers(); ++i) {
      layers_.push_back(std::make_unique<DeviceShadowKv>(joint.Sequence(i)));
      layers.push_back(layers_.back()->get());
      layers.back().joint_tail = coefficients_.data();
      if (wide.key_bias() == nullptr) {
        biases.push_back(nullptr);
        continue;
      }
      biases_.emplace_back(std::span(wide.key_bias() + i * width, static_cast<size_t>(width)));
      biases.push_back(biases_.back().data());
    }
    sequences_ = std::make_unique<DeviceArray<ShadowKvSequence>>(layers);
    bias_pointers_ = std::make_unique<DeviceArray<const float*>>(biases);
  }

  ShadowKvAppendJointParams params() const {
    return {.layers = sequences_->data(),
            .key_bias = bias_pointers_->data(),
            .num_layers = static_cast<int64_t>(layers_.size()),
            .rope = rope_.get()};
  }
  std::vector<std::byte> coefficients() const { return coefficients_.Get(); }

 private:
  DeviceShadowKvRope rope_;
  DeviceArray<std::byte> coefficients_;
  std::vector<std::unique_ptr<DeviceShadowKv>> layers_;
  std::vector<DeviceArray<float>> biases_;
  std::unique_ptr<DeviceArray<ShadowKvSequence>> sequences_;
  std::unique_ptr<DeviceArray<const float*>> bias_pointers_;
};

TEST_F(ShadowKvAppendGpuTest, JointCoefficientsAreCodedWhenTheyAreDue) {
  // Layers with a bias and coefficients of one byte; heads that take two passes, without.
  for (const bool biased : {false, true}) {
    SCOPED_TRACE(biased ? "bias" : "no bias");
    ShadowKvShape shape = Short(140);
    shape.generated_tokens = 100;
    shape.heads = 12;
    shape.config.kv_heads = 6;
    shape.config.head_dim = biased ? 32 : 64;
    shape.config.rank = biased ? 83 : 150;  // more than one layer's width
    shape.config.dtype = DType::kF32;
    shape.config.int8_coefficients = biased;
    shape.key_bias = biased ? 0.5f : 0.0f;
    const ShadowKvContext host(ReferenceOps(), 1, shape);
    ShadowKvProblem wide(ReferenceOps(), *host, shape);
    ShadowKvJointProblem joint(ReferenceOps(), wide, 3);
    const ShadowKvTailLayout tail(joint.layout(), shape.generated_tokens);
    int64_t coded = 0;
    for (int64_t step = 0; step < shape.generated_tokens; ++step) {
      wide.Append(ReferenceOps(), *host);
      joint.Append();
      const bool due = tail.BlockDueAt(wide.tokens() - 1).has_value();
      if (!due && step % 29 != 0) {
        continue;
      }
      const JointAppend device(wide, joint);
      ASSERT_TRUE(ops().shadowkv_append_joint(context(), device.params()).ok());
      Wait();
      const std::vector<std::byte> got = device.coefficients();
      if (due) {
        ++coded;
        ExpectSameCoefficients(joint.layout().config, got.data(), joint.tail_coefficients().data());
      } else {
        EXPECT_EQ(got, std::vector<std::byte>(got.size(), std::byte{0xff})) << "step " << step;
      }
    }
    EXPECT_EQ(coded, 1);
  }
}

}  // namespace
}  // namespace baton::kernels::cuda
