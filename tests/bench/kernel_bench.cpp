// SPDX-License-Identifier: Apache-2.0
// Measures the rates of the ops at the shapes of the S/16 model. It is not part of the build.
// Compile it by hand:
//   g++ -O3 -std=c++20 -march=x86-64-v3 -fopenmp -I. -Isrc tests/bench/kernel_bench.cpp
//       BUILD/libtrainer_{kernels,device,base}.a -ldnnl -lfmt -lspdlog -lxxhash -lcrypto
// A build with CUDA also needs -L/usr/local/cuda/lib64 -lcudart_static -ldl -lrt.
// Usage: kernel_bench [threads] [best|TABLE] [filter] [fixed]. Prints the best of short repeats.
// TABLE is the name of vector loops (avx2, avx2_wide, avx512, avx512_portable).
// ONEDNN_MAX_CPU_ISA=AVX2 limits oneDNN to AVX2, too. OMP_PROC_BIND=true helps on a busy machine.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

#include "kernels/attention.hpp"
#include "kernels/cast.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"
#include "kernels/layer_norm.hpp"
#include "kernels/patchify.hpp"
#include "kernels/softmax_xent.hpp"
#include "kernels/testing.hpp"

namespace {

using namespace kernels;

std::string g_filter;

View tensor(int64_t count) {
  static const std::vector<float> numbers = [] {
    std::vector<float> out(4099);
    for (size_t i = 0; i < out.size(); ++i) out[i] = base::Stream(1, "bench").uniform(i) - 0.5f;
    return out;
  }();
  float* p = static_cast<float*>(std::aligned_alloc(64, size_t((count * 4 + 63) / 64 * 64)));
  for (int64_t i = 0; i < count; ++i) p[i] = numbers[size_t(i % 4099)];
  return device::view(p, count);
}
View ids(int64_t count, int32_t end) {
  int32_t* p = static_cast<int32_t*>(std::malloc(size_t(count) * 4));
  for (int64_t i = 0; i < count; ++i)
    p[i] = i % 4 ? end - 1 : int32_t(base::Stream(2, "bench").uniform(uint64_t(i)) * float(end));
  return device::view(p, count);
}
void release(std::initializer_list<View> views) {
  for (const View& v : views) std::free(v.data);
}

// Returns processor time for one thread, because other programs on the machine do not change it.
double clock_s(const Queue& queue) {
  if (queue.threads() > 1) return base::now_s();
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

bool wanted(const std::string& name) { return name.find(g_filter) != std::string::npos; }

template <class Args>
void measure(const std::string& name, const Args& args, Queue& queue) {
  if (!wanted(name)) return;
  run(args, queue);
  double best = 1e9, begin = base::now_s();
  int repeats = 0;
  while ((base::now_s() - begin < 0.3 || repeats < 3) && repeats < 10000) {
    double t = clock_s(queue);
    run(args, queue);
    best = std::min(best, clock_s(queue) - t);
    ++repeats;
  }
  Cost c = cost(args);
  std::printf("%-44s %9.3f ms %8.1f GFLOP/s %7.1f GB/s\n", name.c_str(), best * 1e3,
              double(c.flops) / best * 1e-9, double(c.bytes) / best * 1e-9);
  std::fflush(stdout);
}

void bench_gemm(int64_t m, int64_t n, int64_t k, bool ta, bool tb, const char* extra,
                Queue& queue) {
  std::string name =
      fmt::format("gemm {}x{}x{} {}{} {}", m, n, k, ta ? "T" : "N", tb ? "T" : "N", extra);
  if (!wanted(name)) return;
  View a = tensor(m * k), b = tensor(k * n), c = tensor(m * n), bias = tensor(n),
       residual = tensor(m * n);
  Gemm g{.c = c, .a = a, .b = b, .m = m, .n = n, .k = k, .trans_a = ta, .trans_b = tb};
  if (std::strchr(extra, 'b')) g.bias = bias;
  if (std::strchr(extra, 'r')) g.residual = residual;
  if (std::strchr(extra, 'a')) g.write = Write::accumulate;
  measure(name, g, queue);
  release({a, b, c, bias, residual});
}

// Returns the same numbers as bf16.
View narrow(View wide) {
  View out{std::malloc(size_t(wide.count) * 2), device::DType::bf16, wide.count};
  Queue queue(device::Kind::cpu);
  run(Cast{out, wide}, queue);
  std::free(wide.data);
  return out;
}

void bench_attention(int64_t batch, int64_t lq, int64_t lk, Mask mask, float dropout,
                     device::DType type, Queue& queue) {
  int64_t heads = 6, d = 64, nq = batch * lq * heads * d, nk = batch * lk * heads * d;
  View q = tensor(nq), k = tensor(nk), v = tensor(nk), o = tensor(nq),
       lse = tensor(batch * heads * lq);
  View dq = tensor(nq), dk = tensor(nk), dv = tensor(nk), d_o = tensor(nq);
  if (type == device::DType::bf16)
    for (View* x : {&q, &k, &v, &o, &dq, &dk, &dv, &d_o}) *x = narrow(*x);
  AttentionShape s{.batch = batch,
                   .heads = heads,
                   .query_length = lq,
                   .key_length = lk,
                   .head_dim = d,
                   .mask = mask};
  s.dropout = dropout;
  const char* what = mask == Mask::causal ? "causal" : dropout > 0 ? "dropout" : "";
  measure(
      fmt::format("attention_forward {}x{}x{} {} {}", batch, lq, lk, device::name_of(type), what),
      AttentionForward{.o = o, .lse = lse, .q = q, .k = k, .v = v, .shape = s}, queue);
  measure(
      fmt::format("attention_backward {}x{}x{} {} {}", batch, lq, lk, device::name_of(type), what),
      AttentionBackward{dq, dk, dv, d_o, q, k, v, o, lse, s}, queue);
  release({q, k, v, o, lse, dq, dk, dv, d_o});
}

void bench_rest(Queue& queue) {
  int64_t rows = 6272, width = 384, mlp = 1536, vocabulary = 32000;
  View x = tensor(rows * mlp), y = tensor(rows * mlp), z = tensor(rows * mlp);
  View mean = tensor(rows), rstd = tensor(rows), scale = tensor(mlp), bias = tensor(mlp);
  View p = tensor(mlp), q = tensor(mlp);
  measure("gelu_forward", GeluForward{y, x}, queue);
  measure("gelu_backward", GeluBackward{z, y, x}, queue);
  int64_t n = rows * width;
  View xs = x.slice(0, n), ys = y.slice(0, n), zs = z.slice(0, n);
  View ss = scale.slice(0, width), bs = bias.slice(0, width);
  measure("layer_norm_forward", LayerNormForward{ys, mean, rstd, xs, ss, bs, rows, width}, queue);
  measure("layer_norm_backward",
          LayerNormBackward{zs, p.slice(0, width), q.slice(0, width), ys, xs, mean, rstd, ss, rows,
                            width, Write::accumulate, Write::accumulate},
          queue);
  measure("layer_norm_backward dx",
          LayerNormBackward{zs, {}, {}, ys, xs, mean, rstd, ss, rows, width}, queue);
  measure("column_sum 384", ColumnSum{p.slice(0, width), xs, rows, width}, queue);
  measure("column_sum 1536", ColumnSum{p, x, rows, mlp}, queue);
  measure("add", Add{zs, xs, ys}, queue);
  measure("add_table", AddTable{zs, xs, y.slice(0, 196 * width), rows, width, 196}, queue);
  measure("copy", Copy{ys, xs}, queue);
  measure("copy big", Copy{y, x}, queue);
  measure("fill", Fill{ys, 1.0f}, queue);
  measure("dropout", Dropout{ys, xs, 0.1f, base::Stream(3, "bench"), 0}, queue);
  View image = tensor(32 * 224 * 224 * 3), patches = tensor(32 * 224 * 224 * 3);
  measure("patchify", Patchify{patches, image, 32, 224, 224, 16}, queue);
  View table = tensor((vocabulary + 1) * width), words = ids(2048, int32_t(vocabulary + 1));
  measure("embedding_forward",
          EmbeddingForward{ys.slice(0, 2048 * width), words, table, xs.slice(0, 64 * width), 2048,
                           width, vocabulary + 1, 64},
          queue);
  for (Write w : {Write::overwrite, Write::accumulate})
    measure(
        w == Write::overwrite ? "embedding_backward" : "embedding_backward accumulate",
        EmbeddingBackward{table, ys.slice(0, 2048 * width), words, 2048, width, vocabulary + 1, w},
        queue);
  measure("gather_rows",
          GatherRows{xs.slice(0, 2048 * width), table, words, 2048, width, vocabulary + 1}, queue);
  View logits = tensor(512 * vocabulary), labels = ids(512, int32_t(vocabulary)),
       loss = tensor(512);
  measure("softmax_xent",
          SoftmaxXent{logits, labels, mean.slice(0, 512), loss, 512, vocabulary, 0, true}, queue);
  measure("softmax_xent smoothing",
          SoftmaxXent{logits, labels, mean.slice(0, 512), loss, 512, vocabulary, 0.1f, true},
          queue);
  measure("softmax_xent loss only",
          SoftmaxXent{logits, labels, {}, loss, 512, vocabulary, 0, false}, queue);
  release(
      {x, y, z, mean, rstd, scale, bias, p, q, image, patches, table, words, logits, labels, loss});
}

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  for (const auto* tables : {&vector_tables(), &portable_vector_tables()})
    for (const VectorTable* table : *tables)
      if (argc > 2 && std::strcmp(argv[2], table->name) == 0) seams::force_vector_table(table);
  if (argc > 3) g_filter = argv[3];
  bool fixed = argc > 4 && std::strcmp(argv[4], "fixed") == 0;
  Queue queue(device::Kind::cpu, threads, fixed);
  std::printf("threads %d, vectors %s%s\n", threads, vector_table().name,
              fixed ? ", fixed order" : "");
  for (int64_t rows : {6272, 1568}) {
    for (auto [in, out] : {std::pair<int64_t, int64_t>{384, 384}, {384, 1536}, {1536, 384}}) {
      bench_gemm(rows, out, in, false, false, "b", queue);
      if (out == 384) bench_gemm(rows, out, in, false, false, "br", queue);
      bench_gemm(rows, in, out, false, true, "", queue);
      bench_gemm(in, out, rows, true, false, "a", queue);
    }
  }
  bench_gemm(512, 32000, 384, false, false, "b", queue);
  bench_gemm(512, 384, 32000, false, true, "", queue);
  bench_gemm(384, 32000, 512, true, false, "a", queue);
  for (device::DType type : {device::DType::f32, device::DType::bf16}) {
    bench_attention(32, 196, 196, Mask::full, 0, type, queue);
    bench_attention(32, 196, 196, Mask::full, 0.1f, type, queue);
    bench_attention(32, 64, 64, Mask::full, 0, type, queue);
    bench_attention(32, 64, 64, Mask::causal, 0, type, queue);
    bench_attention(32, 64, 196, Mask::full, 0, type, queue);
  }
  bench_rest(queue);
}
