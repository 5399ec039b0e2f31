// The joint code of keys that are projections of one hidden state (shadowkv.md 7.3; section 10,
// check 8): its error against the best one that there is, and the closed form from H.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "absl/status/status.h"

#include "kernels/core/buffer.h"
#include "kernels/core/dtype.h"
#include "kernels/kv_format/dense.h"
#include "kernels/kv_format/shadowkv.h"
#include "kernels/ops/op_table.h"
#include "kernels/ops/params.h"
#include "kernels/ops/shadowkv_params.h"
#include "kernels/reference/jacobi.h"
#include "tests/kernels/support/backends.h"

namespace baton::kernels {
namespace {

constexpr int64_t kTokens = 320;
constexpr int64_t kHidden = 96;
constexpr int64_t kLayers = 4;
constexpr int64_t kWidth = 64;
constexpr int64_t kColumns = kLayers * kWidth;
constexpr int64_t kRank = 40;

// Row-major.
struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> data;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), data(static_cast<size_t>(r * c)) {}
  double& at(int64_t r, int64_t c) { return data[static_cast<size_t>(r * columns + c)]; }
  double at(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * columns + c)]; }
};

Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.columns; ++k) {
      for (int64_t j = 0; j < b.columns; ++j) {
        product.at(i, j) += a.at(i, k) * b.at(k, j);
      }
    }
  }
  return product;
}

Matrix Transposed(const Matrix& a) {
  Matrix t(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) {
      t.at(j, i) = a.at(i, j);
    }
  }
  return t;
}

// Frobenius norm of a - b.
double Distance(const Matrix& a, const Matrix& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    sum += (a.data[i] - b.data[i]) * (a.data[i] - b.data[i]);
  }
  return std::sqrt(sum);
}

struct Eigen {
  std::vector<double> values;  // falling
  Matrix vectors;              // rows
};

Eigen Decompose(const Matrix& symmetric) {
  const int64_t n = symmetric.rows;
  Matrix diagonal = symmetric;
  Matrix vectors(n, n);
  reference::JacobiEigen(n, diagonal.data.data(), vectors.data.data());
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, std::greater(), [&](int64_t i) { return diagonal.at(i, i); });
  Eigen sorted = {.values = {}, .vectors = Matrix(n, n)};
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = order[static_cast<size_t>(i)];
    sorted.values.push_back(diagonal.at(from, from));
    for (int64_t j = 0; j < n; ++j) {
      sorted.vectors.at(i, j) = vectors.at(from, j);
    }
  }
  return sorted;
}

Matrix SquareRoot(const Matrix& symmetric) {
  const Eigen eigen = Decompose(symmetric);
  Matrix scaled = eigen.vectors;
  for (int64_t i = 0; i < scaled.rows; ++i) {
    for (int64_t j = 0; j < scaled.columns; ++j) {
      scaled.at(i, j) *= std::sqrt(std::max(0.0, eigen.values[static_cast<size_t>(i)]));
    }
  }
  return Transposed(eigen.vectors) * scaled;
}

// H with directions of falling energy, W = [W_1 ... W_n] with layers of different size, and the
// keys H W as fp32 pages hold them.
struct SwiftKvKeys {
  Matrix hidden{kTokens, kHidden};
  Matrix weights{kHidden, kColumns};
  Matrix keys{kTokens, kColumns};

  SwiftKvKeys() {
    std::mt19937 random(TestSeed());
    std::normal_distribution<double> normal;
    Matrix mixing(kHidden, kHidden);
    std::ranges::generate(mixing.data, [&] { return normal(random); });
    Matrix energies(kTokens, kHidden);
    for (int64_t i = 0; i < kTokens * kHidden; ++i) {
      energies.data[static_cast<size_t>(i)] =
          normal(random) * std::pow(1.0 + static_cast<double>(i % kHidden), -0.8);
    }
    hidden = energies * mixing;
    for (int64_t i = 0; i < kHidden * kColumns; ++i) {
      const int64_t layer = i % kColumns / kWidth;
      weights.data[static_cast<size_t>(i)] =
          normal(random) * (0.02 + 0.01 * static_cast<double>(layer));
    }
    keys = hidden * weights;
    std::ranges::transform(
        keys.data, keys.data.begin(), [](double x) { return double{static_cast<float>(x)}; });
  }
};

// Z [B_1 ... B_n] of the op; positions without rotation.
Matrix OpsProduct(const OpTable& ops, const Matrix& keys) {
  ShadowKvConfig config = {.rank = kRank, .chunk_tokens = 1, .local_chunks = 0};
  config.kv_heads = 2;
  config.head_dim = kWidth / 2;
  config.dtype = DType::kF32;
  config.joint = true;
  const ShadowKvPromptLayout layout(config, kTokens);
  const TestContext context(
      ops,
      2,
      ops.shadowkv_workspace_bytes(
          2, {.config = config, .heads = 2, .max_tokens = kTokens, .layers = kLayers}));
  const DensePageLayout page = {.page_tokens = kTokens,
                                .kv_heads = config.kv_heads,
                                .head_dim = config.head_dim,
                                .dtype = DType::kF32};
  Buffer pages(page.stride_bytes() * kLayers);
  const std::vector<float> stored(keys.data.begin(), keys.data.end());
  std::vector<int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> tables(kLayers);
  std::iota(tables.begin(), tables.end(), 0);
  std::vector<Buffer> prompts;
  std::vector<ShadowKvJointLayer> layers;
  for (int64_t i = 0; i < kLayers; ++i) {
    const SequenceRows rows = {
        .row_begin = 0, .row_count = kTokens, .page_table = &tables[static_cast<size_t>(i)]};
    EXPECT_TRUE(ops.kv_write(*context,
                             {.k = stored.data() + i * kWidth,
                              .k_stride = kColumns,
                              .v = stored.data() + i * kWidth,
                              .v_stride = kColumns,
                              .positions = positions.data(),
                              .sequences = &rows,
                              .num_sequences = 1,
                              .pages = {.base = pages.data(), .layout = page}})
                    .ok());
    prompts.emplace_back(layout.bytes);
    layers.push_back({.page_table = rows.page_table, .prompt = prompts.back().data()});
  }
  const std::vector<float> ones(kTokens * kWidth / 4, 1.0f);
  const std::vector<float> zeros(kTokens * kWidth / 4, 0.0f);
  Buffer coefficients(ShadowKvCoefficientLayout(config, kTokens).bytes);
  const absl::Status status = ops.shadowkv_encode_joint(
      *context,
      {.layout = layout,
       .pages = {.base = pages.data(), .layout = page},
       .layers = layers.data(),
       .num_layers = kLayers,
       .rope = {.cosines = ones.data(), .sines = zeros.data(), .positions = kTokens},
       .coefficients = coefficients.data()});
  EXPECT_TRUE(status.ok()) << status;
  Matrix z(kTokens, kRank);
  std::copy_n(coefficients.as<float>(), z.data.size(), z.data.begin());
  Matrix bases(kRank, kColumns);
  for (int64_t i = 0; i < kRank * kColumns; ++i) {
    const int64_t column = i % kColumns;
    bases.data[static_cast<size_t>(i)] =
        double{prompts[static_cast<size_t>(column / kWidth)]
                   .as<float>()[i / kColumns * kWidth + column % kWidth]};
  }
  return z * bases;
}

// Z = H G^1/2 U, P = U^T G^1/2 C / eigenvalues, B_j = P W_j, from the eigenpairs of G^1/2 C G^1/2
// with C = H^T H and G = sum of W_j W_j^T.
Matrix ClosedForm(const SwiftKvKeys& problem) {
  const Matrix root = SquareRoot(problem.weights * Transposed(problem.weights));
  const Matrix c = Transposed(problem.hidden) * problem.hidden;
  const Eigen eigen = Decompose(root * c * root);
  Matrix u(kHidden, kRank);
  for (int64_t i = 0; i < kHidden; ++i) {
    for (int64_t j = 0; j < kRank; ++j) {
      u.at(i, j) = eigen.vectors.at(j, i);
    }
  }
  Matrix p = Transposed(u) * root * c;
  for (int64_t i = 0; i < kRank; ++i) {
    for (int64_t j = 0; j < kHidden; ++j) {
      p.at(i, j) /= eigen.values[static_cast<size_t>(i)];
    }
  }
  return problem.hidden * root * u * (p * problem.weights);
}

// What the best approximation of this rank leaves out (Eckart and Young).
double LeastError(const Matrix& keys) {
  const Eigen eigen = Decompose(Transposed(keys) * keys);
  return std::sqrt(std::accumulate(eigen.values.begin() + kRank, eigen.values.end(), 0.0));
}

class ShadowKvJointCodeTest : public BackendTest {};

TEST_P(ShadowKvJointCodeTest, ErrorIsThatOfTheStackedKeysSvd) {
  const SwiftKvKeys problem;
  const double least = LeastError(problem.keys);
  const double size = Distance(problem.keys, Matrix(kTokens, kColumns));
  ASSERT_GT(least, 0.01 * size) << "nothing to lose; " << SeedMessage();
  const Matrix product = OpsProduct(ops(), problem.keys);
  EXPECT_LT(Distance(problem.keys, product), 1.001 * least) << SeedMessage();
  const Matrix closed = ClosedForm(problem);
  EXPECT_LT(Distance(problem.keys, closed), 1.001 * least) << SeedMessage();
  EXPECT_LT(Distance(product, closed), 0.05 * least) << SeedMessage();
}

INSTANTIATE_TEST_SUITE_P(Backends, ShadowKvJointCodeTest, testing::ValuesIn(kBackends));

}  // namespace
}  // namespace baton::kernels
