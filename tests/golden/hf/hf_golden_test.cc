// Every family against HuggingFace transformers (tests/data/goldens/README.md).
#include <algorithm>
#include <filesystem>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "kernels/select.h"
#include "tests/golden/compare.h"
#include "tests/unit/checkpoint/temp_dir.h"
#include "tests/unit/model/model_harness.h"

namespace baton::golden {
namespace {

namespace fs = std::filesystem;

struct Variant {
  std::string directory;
  std::string config_file;  // stands in the place of config.json
  std::string device;
};

void PrintTo(const Variant& variant, std::ostream* out) {
  *out << variant.directory << (variant.config_file == "config.json" ? "" : "_transformers5") << "_"
       << variant.device;
}

std::string Name(const testing::TestParamInfo<Variant>& test) {
  std::string name = testing::PrintToString(test.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class HfGoldenTest : public testing::TestWithParam<Variant> {
 protected:
  // A copy of the directory made of links, with the wanted configuration.
  void SetUp() override {
    const fs::path source =
        fs::absolute(BATON_SOURCE_DIR) / "tests/data/goldens/hf" / GetParam().directory;
    for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
      if (entry.path().filename() != "config.json") {
        fs::create_symlink(entry.path(), directory_.File(entry.path().filename().string()));
      }
    }
    fs::create_symlink(source / GetParam().config_file, directory_.File("config.json"));
    auto checkpoint = checkpoint::Checkpoint::Open(directory_.path(), {});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    auto golden = checkpoint::SafetensorsFile::Open(directory_.File("golden.safetensors"));
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = std::make_unique<checkpoint::SafetensorsFile>(*std::move(golden));
    ops_ = kernels::SelectOps(GetParam().device).value();
  }

  std::unique_ptr<model::ModelHarness> Harness() const {
    return std::make_unique<model::ModelHarness>(
        *checkpoint_, *ops_, model::HarnessOptions{.max_tokens = 1400});
  }

  TempDir directory_;
  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<checkpoint::SafetensorsFile> golden_;
  const kernels::OpTable* ops_ = nullptr;
};

TEST_P(HfGoldenTest, LogitsHiddenStatesAndGreedyIds) {
  const std::vector<int32_t> ids = ReadInts(*golden_, "input_ids");
  const std::unique_ptr<model::ModelHarness> harness = Harness();
  const auto hidden_size = static_cast<size_t>(checkpoint_->config().hidden_size);
  std::vector<float> hidden_last;
  harness->on_hidden = [&](int32_t, std::span<const float> x, int64_t) {
    const std::span<const float> last = x.last(hidden_size);
    hidden_last.insert(hidden_last.end(), last.begin(), last.end());
  };
  model::StepPart part = {0, ids, {}, {}};
  for (size_t i = 0; i < ids.size(); ++i) {
    part.logits.push_back(static_cast<int32_t>(i));
  }
  const std::vector<float> logits = harness->Step({part});
  harness->on_hidden = nullptr;
  ExpectMatchesGolden(logits, ReadFloats(*golden_, "logits"), "logits");
  ExpectMatchesGolden(hidden_last, ReadFloats(*golden_, "hidden_last"), "hidden_last");
  const auto vocab = static_cast<ptrdiff_t>(checkpoint_->config().vocab_size);
  const std::vector<int32_t> greedy = ReadInts(*golden_, "greedy_ids");
  EXPECT_EQ(harness->Greedy(0,
                            std::vector<float>(logits.end() - vocab, logits.end()),
                            static_cast<int32_t>(greedy.size())),
            greedy);
}

TEST_P(HfGoldenTest, LongPromptInChunks) {
  const std::vector<int32_t> ids = ReadInts(*golden_, "long_input_ids");
  const std::vector<float> expected = ReadFloats(*golden_, "long_last_logits");
  for (const int32_t chunk : {1200, 171}) {
    ExpectMatchesGolden(Harness()->Prefill(0, ids, chunk),
                        expected,
                        "long_last_logits, chunk " + std::to_string(chunk));
  }
}

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const char* directory : {"llama31",
                                "llama32-tied",
                                "llama-hd128",
                                "qwen2",
                                "qwen3",
                                "mistral-swa",
                                "llama-sharded"}) {
    for (const char* config : {"config.json", "config.transformers5.json"}) {
      variants.push_back({directory, config, "cpu"});
    }
    variants.push_back({directory, "config.json", "reference"});
  }
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Variants, HfGoldenTest, testing::ValuesIn(Variants()), Name);

}  // namespace
}  // namespace baton::golden
