// The dependency direction of the tree: tests/unit/repository/allowed_includes.txt against every
// #include of kernels/, common/ and services/.

#include "tests/unit/repository/include_graph.h"

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::repository {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

IncludeRules ReadRules() {
  std::ifstream stream(std::string(BATON_SOURCE_DIR) +
                       "/tests/unit/repository/allowed_includes.txt");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_FALSE(text.empty());
  std::vector<std::string> errors;
  IncludeRules rules = IncludeRules::Parse(text, errors);
  EXPECT_THAT(errors, IsEmpty());
  return rules;
}

std::vector<std::string> Check(const std::string& file, std::string_view text) {
  return CheckFile(ReadRules(), file, text);
}

TEST(IncludeGraphTest, EveryIncludeOfTheTreeIsAllowed) {
  int files = 0;
  const std::vector<std::string> breaches = CheckTree(ReadRules(), BATON_SOURCE_DIR, files);
  EXPECT_GT(files, 0);
  for (const std::string& breach : breaches) {
    ADD_FAILURE() << breach;
  }
}

TEST(IncludeGraphTest, FindsAPlantedBackEdge) {
  EXPECT_THAT(
      Check("kernels/ops/params.h", "#include <vector>\n\n#include \"common/model/model.h\"\n"),
      ElementsAre("kernels/ops/params.h:3: kernels/ops may not include "
                  "\"common/model/model.h\""));
  EXPECT_THAT(Check("common/kv/pool/pool.cc", "#include \"common/engine/engine.h\""),
              ElementsAre(HasSubstr("common/kv/pool/pool.cc:1: ")));
}

TEST(IncludeGraphTest, FindsAServiceThatIncludesAnother) {
  EXPECT_THAT(Check("services/router/main.cc", "#include \"services/decode/server.h\""),
              ElementsAre(HasSubstr("services/router may not include")));
}

TEST(IncludeGraphTest, FindsAServiceThatReachesPastCommon) {
  EXPECT_THAT(Check("services/router/main.cc", "#include \"kernels/ops/params.h\""),
              ElementsAre(HasSubstr("services/router may not include")));
}

TEST(IncludeGraphTest, FindsAnUnknownFolder) {
  EXPECT_THAT(Check("common/base/check.h", "#include \"utilities/strings.h\""),
              ElementsAre(HasSubstr("no folder that allowed_includes.txt knows")));
  EXPECT_THAT(Check("common/misc/thing.cc", ""),
              ElementsAre(HasSubstr("common/misc/thing.cc:1: is in no folder")));
}

TEST(IncludeGraphTest, FindsAnIncludeWithoutItsPath) {
  EXPECT_THAT(Check("common/base/check.cc", "#include \"check.h\""),
              ElementsAre(HasSubstr("does not carry its path from the root")));
}

TEST(IncludeGraphTest, FindsGrpcInKernelsHoweverItIsQuoted) {
  EXPECT_THAT(Check("kernels/cpu/cpu_ops.cc", "#  include <grpcpp/grpcpp.h>"),
              ElementsAre(HasSubstr("kernels/cpu may not use the library")));
  EXPECT_THAT(Check("kernels/cpu/cpu_ops.cc", "#include \"grpcpp/grpcpp.h\""),
              ElementsAre(HasSubstr("kernels/cpu may not use the library")));
}

TEST(IncludeGraphTest, AllowsWhatAnAllowedFolderRestsOn) {
  EXPECT_THAT(Check("common/engine/engine.cc",
                    "#include \"common/engine/engine.h\"\n"
                    "#include \"common/base/check.h\"\n"
                    "#include \"kernels/core/dtype.h\"\n"
                    "#include \"absl/status/status.h\"\n"
                    "#include <prometheus/counter.h>\n"),
              IsEmpty());
}

TEST(IncludeGraphTest, KeepsAnInterfaceApartFromWhatFillsIt) {
  EXPECT_THAT(
      Check("common/transport/transport.h", "#include \"common/transport/grpc/endpoint.h\"\n"),
      ElementsAre(HasSubstr("common/transport may not include")));
  EXPECT_THAT(Check("common/transport/grpc/endpoint.h",
                    "#include \"common/transport/transport.h\"\n"
                    "#include \"proto/baton/worker/v1/kv_transfer.grpc.pb.h\"\n"),
              IsEmpty());
}

TEST(IncludeGraphTest, ReportsARuleThatCannotBeRead) {
  std::vector<std::string> errors;
  IncludeRules::Parse("common/base :\ncommon/base common/rpc\n", errors);
  EXPECT_THAT(errors, ElementsAre("line 2: not a rule: common/base common/rpc"));
}

}  // namespace
}  // namespace baton::repository
