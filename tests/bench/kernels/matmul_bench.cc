// Matmul of the CPU back end beside oneDNN's fp32 matmul (weights already widened and in oneDNN's
// own layout). Each shape's answer is checked against the reference before it is timed.
#include <unordered_map>

#include <oneapi/dnnl/dnnl.hpp>

#include "tests/bench/kernels/bench_support.h"

extern "C" void omp_set_num_threads(int threads);

namespace baton::kernels {
namespace {

struct Shape {
  int64_t rows;
  int64_t in_features;
  int64_t out_features;
  int64_t threads;
};

Shape ShapeOf(const benchmark::State& state) {
  return {state.range(0), state.range(1), state.range(2), state.range(3)};
}

double Flops(const Shape& shape) {
  return 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in_features) *
         static_cast<double>(shape.out_features);
}

struct Problem {
  explicit Problem(const Shape& shape)
      : x(RandomFloats(static_cast<size_t>(shape.rows * shape.in_features), 1)),
        weight(RandomBF16(static_cast<size_t>(shape.out_features * shape.in_features), 2)),
        out(static_cast<size_t>(shape.rows * shape.out_features)) {}

  MatmulParams Params(const Shape& shape, const Buffer& packed) {
    return {.x = x.data(),
            .x_stride = shape.in_features,
            .weight = {.data = packed.data(),
                       .out_features = shape.out_features,
                       .in_features = shape.in_features,
                       .dtype = DType::kBF16},
            .rows = shape.rows,
            .out = out.data(),
            .out_stride = shape.out_features};
  }

  std::vector<float> x;
  std::vector<uint16_t> weight;
  std::vector<float> out;
};

Buffer Pack(const OpTable& ops, const ExecContext& context, const Shape& shape, Problem& problem) {
  Buffer packed(ops.packed_matrix_bytes(shape.out_features, shape.in_features, DType::kBF16));
  const absl::Status status =
      ops.pack_matrix(context,
                      {.source = reinterpret_cast<const std::byte*>(problem.weight.data()),
                       .out_features = shape.out_features,
                       .in_features = shape.in_features,
                       .dtype = DType::kBF16,
                       .target = packed.data()});
  return status.ok() ? std::move(packed) : Buffer();
}

// The last row against the reference.
bool LastRowIsRight(const Shape& shape, Problem& problem, const ExecContext& context) {
  Shape one = shape;
  one.rows = 1;
  Problem expected(one);
  const auto offset = static_cast<std::ptrdiff_t>((shape.rows - 1) * shape.in_features);
  expected.x.assign(problem.x.begin() + offset, problem.x.end());
  const Buffer packed = Pack(ReferenceOps(), context, one, expected);
  const bool ok = ReferenceOps().matmul(context, expected.Params(one, packed)).ok();
  const auto last = static_cast<std::ptrdiff_t>((shape.rows - 1) * shape.out_features);
  const std::vector<float> got(problem.out.begin() + last, problem.out.end());
  return ok && RelativeError(got, expected.out) < 1e-5;
}

void BatonMatmul(benchmark::State& state) {
  const Shape shape = ShapeOf(state);
  BenchMachine& machine = Machine(shape.threads);
  Problem problem(shape);
  const Buffer packed = Pack(CpuOps(), machine.context, shape, problem);
  const MatmulParams params = problem.Params(shape, packed);
  if (!CpuOps().matmul(machine.context, params).ok() ||
      !LastRowIsRight(shape, problem, machine.context)) {
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(CpuOps().matmul(machine.context, params).ok());
  }
  Report(state, machine.limits, Flops(shape), static_cast<double>(packed.size()));
}

void OneDnnMatmul(benchmark::State& state) {
  using dnnl::memory;
  const Shape shape = ShapeOf(state);
  BenchMachine& machine = Machine(shape.threads);
  omp_set_num_threads(static_cast<int>(shape.threads));
  Problem problem(shape);
  std::vector<float> wide(problem.weight.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = BF16ToF32(problem.weight[i]);
  }
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const memory::desc x_desc(
      {shape.rows, shape.in_features}, memory::data_type::f32, memory::format_tag::ab);
  const memory::desc w_desc(
      {shape.in_features, shape.out_features}, memory::data_type::f32, memory::format_tag::ba);
  const memory::desc any_desc(
      {shape.in_features, shape.out_features}, memory::data_type::f32, memory::format_tag::any);
  const memory::desc out_desc(
      {shape.rows, shape.out_features}, memory::data_type::f32, memory::format_tag::ab);
  const dnnl::matmul::primitive_desc primitive({x_desc, any_desc, out_desc}, engine);
  memory x(x_desc, engine, problem.x.data());
  memory plain(w_desc, engine, wide.data());
  memory packed(primitive.weights_desc(), engine);
  dnnl::reorder(plain, packed).execute(stream, plain, packed);
  memory out(out_desc, engine, problem.out.data());
  const dnnl::matmul matmul(primitive);
  const std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, out}};
  matmul.execute(stream, arguments);
  stream.wait();
  if (!LastRowIsRight(shape, problem, machine.context)) {
    state.SkipWithError("wrong answer");
    return;
  }
  for (auto _ : state) {
    matmul.execute(stream, arguments);
    stream.wait();
  }
  Report(state, machine.limits, Flops(shape), static_cast<double>(wide.size() * sizeof(float)));
}

// Projections of a small model (hidden 256), of one with hidden 1024 and of an 8B model, for decode
// steps of one and eight rows and prefill chunks.
void Shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"rows", "in", "out", "threads"})->UseRealTime();
  for (const int64_t threads : {1, 2}) {
    for (const int64_t rows : {1, 4, 8, 16, 32, 64, 256, 1024}) {
      bench->Args({rows, 256, 512, threads});
      bench->Args({rows, 1024, 3072, threads});
      bench->Args({rows, 4096, 4096, threads});
    }
  }
}

BENCHMARK(BatonMatmul)->Apply(Shapes);
BENCHMARK(OneDnnMatmul)->Apply(Shapes);

}  // namespace
}  // namespace baton::kernels

BENCHMARK_MAIN();
