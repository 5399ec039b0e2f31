// The goldens with the roundings of a device: weights, activations and pages in bf16. On the device
// double, and on a GPU where one is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/safetensors_file.h"
#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "tests/golden/compare.h"
#include "tests/kernels/device_double/device_double.h"
#include "tests/kernels/device_double/guarded_memory.h"
#include "tests/unit/model/model_harness.h"

namespace baton::golden {
namespace {

const std::string kData = std::string(BATON_SOURCE_DIR) + "/tests/data/";

// Rounding weights, activations and pages to bf16 moves logits by up to this much of the largest.
constexpr double kTolerance = 0.04;

struct Case {
  std::string directory;  // below tests/data
  std::string model;      // of a shipped model: its name in the goldens; else empty
  std::string id;         // of a shipped model: the prompt
  std::string device;
};

void PrintTo(const Case& wanted, std::ostream* out) {
  *out << wanted.directory << " " << wanted.id << " on " << wanted.device;
}

std::string Name(const testing::TestParamInfo<Case>& test) {
  const Case& wanted = test.param;
  std::string name = wanted.device + "_" + wanted.directory.substr(wanted.directory.rfind('/') + 1);
  name += wanted.id.empty() ? "" : "_" + wanted.id;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<float> last_logits;
  std::vector<int32_t> greedy;
};

Golden ReadShipped(const Case& wanted) {
  Golden golden;
  const auto file = checkpoint::SafetensorsFile::Open(kData + "models/golden/golden.safetensors");
  if (!file.ok()) {
    ADD_FAILURE() << file.status();
    return golden;
  }
  golden.prompt = ReadInts(*file, wanted.id + ".input_ids");
  golden.last_logits = ReadFloats(*file, wanted.model + "." + wanted.id + ".last_logits");
  const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(kData + "models/golden/golden.json"));
  for (const nlohmann::json& entry : all["cases"]) {
    if (entry["model"] == wanted.model && entry["id"] == wanted.id) {
      golden.greedy = entry["greedy_ids"].get<std::vector<int32_t>>();
    }
  }
  return golden;
}

Golden ReadHf(const Case& wanted, int64_t vocab) {
  Golden golden;
  const auto file =
      checkpoint::SafetensorsFile::Open(kData + wanted.directory + "/golden.safetensors");
  if (!file.ok()) {
    ADD_FAILURE() << file.status();
    return golden;
  }
  golden.prompt = ReadInts(*file, "input_ids");
  const std::vector<float> logits = ReadFloats(*file, "logits");
  golden.last_logits.assign(logits.end() - vocab, logits.end());
  golden.greedy = ReadInts(*file, "greedy_ids");
  return golden;
}

class DeviceGoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().device == "cuda") {
      auto opened = kernels::Backend::Open("cuda", 2);
      if (!opened.ok()) {
        GTEST_SKIP() << opened.status();
      }
      backend_ = *std::move(opened);
    }
    auto checkpoint = checkpoint::Checkpoint::Open(kData + GetParam().directory, {});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    golden_ = GetParam().model.empty() ? ReadHf(GetParam(), checkpoint_->config().vocab_size)
                                       : ReadShipped(GetParam());
    ASSERT_FALSE(golden_.greedy.empty());
  }

  model::ModelHarness Harness() const {
    model::HarnessOptions options = {
        .dtype = kernels::DType::kBF16,
        .max_tokens = static_cast<int64_t>(golden_.prompt.size() + golden_.greedy.size())};
    if (backend_ == nullptr) {
      options.memory = &kernels::GuardedMemory::Get();
      return {*checkpoint_, kernels::DeviceDoubleOps(kernels::DType::kBF16), options};
    }
    options.memory = backend_->exec().memory;
    options.queue = backend_->exec().queue;
    return {*checkpoint_, backend_->ops(), options};
  }

  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  Golden golden_;
};

// How much more likely than `token` the most likely one is, in logits over the largest logit.
double Behind(std::span<const float> logits, int32_t token) {
  const auto larger = [](float a, float b) { return std::abs(a) < std::abs(b); };
  const double largest = std::abs(*std::max_element(logits.begin(), logits.end(), larger));
  const float most = *std::max_element(logits.begin(), logits.end());
  return (most - logits[static_cast<size_t>(token)]) / largest;
}

// Along the golden answer every token is the most likely one, or as likely up to the tolerance.
TEST_P(DeviceGoldenTest, LastLogitsAndTheWayOfTheAnswer) {
  model::ModelHarness harness = Harness();
  std::vector<float> logits = harness.Prefill(0, golden_.prompt, 2048);
  const double error = RelativeError(logits, golden_.last_logits);
  EXPECT_LE(error, kTolerance);
  int same = 0;
  for (size_t i = 0; i < golden_.greedy.size(); ++i) {
    const int32_t token = golden_.greedy[i];
    EXPECT_LE(Behind(logits, token), kTolerance) << "token " << i;
    same += model::MostLikely(logits) == token ? 1 : 0;
    logits = harness.Step({{0, {token}, {0}, {0}}});
  }
  RecordProperty("error", std::to_string(error));
  RecordProperty("same_tokens", same);
  RecordProperty("tokens", static_cast<int>(golden_.greedy.size()));
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* device : {"double", "cuda"}) {
    for (const char* hf : {"llama31",
                           "llama32-tied",
                           "llama-hd128",
                           "qwen2",
                           "qwen3",
                           "mistral-swa",
                           "llama-sharded"}) {
      cases.push_back({std::string("goldens/hf/") + hf, "", "", device});
    }
    const std::vector<std::pair<std::string, std::string>> models = {
        {"base", "tiny-llama-needle"},
        {"l6", "tiny-llama-needle-swiftkv-l6"},
        {"l6a2", "tiny-llama-needle-swiftkv-l6-across2"}};
    for (const auto& [model, directory] : models) {
      for (const char* id : {"public-niah_single-512-000",
                             "public-niah_multikey-2048-000",
                             "public-vt-8192-000",
                             "public-copy-512-000",
                             "public-chain-512-000",
                             "public-multiturn-2048-000"}) {
        cases.push_back({"models/" + directory, model, id, device});
      }
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, DeviceGoldenTest, testing::ValuesIn(Cases()), Name);

}  // namespace
}  // namespace baton::golden
