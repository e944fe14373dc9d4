// Matrix products by oneDNN. A plan (primitives, memory objects, argument lists) is made at the first use of a shape
// and kept; later uses only point it at new data.
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <vector>

#include "base/narrow.hpp"
#include "kernels/cast.hpp"
#include "kernels/check_views.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/vector_table.hpp"
#include "kernels/gelu.hpp"
#include "kernels/gemm.hpp"

namespace kernels {
namespace {

bool has_isa(dnnl::cpu_isa isa) {  // bits of what an instruction set includes; ONEDNN_MAX_CPU_ISA limits them
  static const auto here = unsigned(dnnl::get_effective_cpu_isa());
  return (here & unsigned(isa)) == unsigned(isa);
}

// Without AVX-512 the library packs b anew in each call. Then few large blocks are faster (of S/16's step 7 %), and where nothing is
// done to them its own division, which may cut k, is faster still (4 %).
bool packs_in_each_call() { return !has_isa(dnnl::cpu_isa::avx512_core); }

// Everything a plan depends on.
struct Key {
  int64_t m, n, k, lda, ldb, ldc;
  bool trans_a, trans_b, bias, residual, accumulate, fixed_order;
  bool narrow = false, narrow_c = false;  // a and b, c are bf16
  bool widen = false;  // a (and c) are bf16, but floats are multiplied: blocks are widened (and rounded)
  bool gelu = false, gelu_of = false;
  int threads = 1;
  // In blocks of our own, each by one thread: where bits must not depend on threads, where more is done to a block, and
  // where every thread gets enough rows to be as fast as the library's own division or faster.
  bool blocks() const {
    return fixed_order || gelu || gelu_of || widen || (m >= 192 * threads && !packs_in_each_call());
  }
  // Of what the library sees: blocks that are widened or still to be rounded lie in scratch, without gaps.
  int64_t product_lda() const { return widen ? k : lda; }
  int64_t product_ldc() const { return rounds() ? n : ldc; }
  bool rounds() const { return widen && narrow_c; }
  auto operator<=>(const Key&) const = default;
};

struct Operands {
  char *c, *a, *b;
  float *bias, *residual;
  char *gelu, *gelu_of;
};

// oneDNN asks OpenMP how many threads to use, when a primitive is made and when it runs.
class ThreadScope {
 public:
  explicit ThreadScope(int threads) : before_(omp_get_max_threads()) {
    if (threads != before_) omp_set_num_threads(threads);
  }
  ~ThreadScope() {
    if (before_ != omp_get_max_threads()) omp_set_num_threads(before_);
  }
  ThreadScope(const ThreadScope&) = delete;

 private:
  int before_;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// One primitive and what each of `workers` threads needs to run it at the same time as the others.
class Product {
 public:
  Product(const Key& key, int64_t m, int64_t n, int workers) {
    using dnnl::memory;
    auto matrix = [](int64_t rows, int64_t columns, int64_t leading, bool transposed, bool narrow) {
      return memory::desc({rows, columns}, narrow ? memory::data_type::bf16 : memory::data_type::f32,
                          transposed ? memory::dims{1, leading} : memory::dims{leading, 1});
    };
    memory::desc a = matrix(m, key.k, key.product_lda(), key.trans_a, key.narrow);
    memory::desc b = matrix(key.k, n, key.ldb, key.trans_b, key.narrow);
    memory::desc c = matrix(m, n, key.product_ldc(), false, key.narrow_c && !key.widen);
    memory::desc residual = matrix(m, n, key.product_ldc(), false, false);
    memory::desc bias = matrix(1, n, n, false, false);

    dnnl::post_ops post_ops;
    if (key.accumulate) post_ops.append_sum(1.0f);
    if (key.residual) post_ops.append_binary(dnnl::algorithm::binary_add, residual);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(post_ops);
    dnnl::matmul::primitive_desc description(key.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c),
                                             attributes, engine());
    primitive_ = dnnl::matmul(description);
    scratch_bytes_ = description.scratchpad_desc().get_size();

    for (int w = 0; w < workers; ++w) {
      Worker& worker = workers_.emplace_back();
      worker.stream = dnnl::stream(engine());
      auto argument = [&](int id, const memory::desc& desc) {
        worker.memories.emplace_back(desc, engine(), nullptr);
        worker.arguments.push_back({id, worker.memories.back().get()});
        return int(worker.memories.size()) - 1;
      };
      argument(DNNL_ARG_DST, c), argument(DNNL_ARG_SRC, a), argument(DNNL_ARG_WEIGHTS, b);
      scratch_index_ = argument(DNNL_ARG_SCRATCHPAD, description.scratchpad_desc());
      if (key.bias) bias_index_ = argument(DNNL_ARG_BIAS, bias);
      int post_op = key.accumulate ? 1 : 0;
      if (key.residual) residual_index_ = argument(DNNL_ARG_ATTR_MULTIPLE_POST_OP(post_op) | DNNL_ARG_SRC_1, residual);
    }
  }

  size_t scratch_bytes() const { return scratch_bytes_; }

  // Goes through the C interface, whose calls neither throw (this runs in parallel regions) nor copy the arguments.
  dnnl_status_t run(int w, const Operands& p, void* scratch) {
    Worker& worker = workers_[size_t(w)];
    auto point = [&](int index, void* data) {
      return dnnl_memory_set_data_handle(worker.memories[size_t(index)].get(), data);
    };
    dnnl_status_t status = dnnl_success;
    auto keep_first_error = [&](dnnl_status_t s) { status = status == dnnl_success ? s : status; };
    keep_first_error(point(0, p.c)), keep_first_error(point(1, p.a)), keep_first_error(point(2, p.b));
    keep_first_error(point(scratch_index_, scratch));
    if (bias_index_ >= 0) keep_first_error(point(bias_index_, p.bias));
    if (residual_index_ >= 0) keep_first_error(point(residual_index_, p.residual));
    if (status != dnnl_success) return status;
    return dnnl_primitive_execute(primitive_.get(), worker.stream.get(), int(worker.arguments.size()),
                                  worker.arguments.data());
  }

 private:
  struct Worker {
    dnnl::stream stream;
    std::vector<dnnl::memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
  };
  dnnl::matmul primitive_;
  std::vector<Worker> workers_;
  size_t scratch_bytes_ = 0;
  int scratch_index_ = -1, bias_index_ = -1, residual_index_ = -1;
};

// Cuts a length into equal blocks of about `target`, whole multiples of 16, the last one shorter.
struct Cut {
  int64_t length, block;
  Cut(int64_t length_, int64_t target)
      : length(length_), block(base::round_up(base::ceil_div(length_, base::ceil_div(length_, target)), 16)) {}
  int64_t count() const { return base::ceil_div(length, block); }
  int64_t size(int64_t i) const { return std::min(block, length - i * block); }
  bool last(int64_t i) const { return size(i) != block; }
};

// Whole rows where they suffice: the library has its best kernels for a c without gaps, and b is prepared once per
// block. About 200 rows of them stay in the second cache for what is done to a block, 400 in the third; each thread gets the same
// number of blocks.
// Else large blocks run as fast as the whole product; smaller ones give more threads something to do, down to where a
// block's own work no longer hides what it costs to start it.
struct Blocks {
  int64_t rows, columns;
  explicit Blocks(const Key& key) : rows(key.m), columns(key.n) {
    if (!key.blocks()) return;
    if (!key.fixed_order) {
      const int64_t most = packs_in_each_call() ? 448 : 224;
      rows = base::ceil_div(key.m, base::round_up(base::ceil_div(key.m, most), key.threads));
      if (rows >= 64) return;
    }
    rows = 128, columns = 768;
    auto few = [&] {
      int64_t m = std::min(rows, key.m), n = std::min(columns, key.n);
      return base::ceil_div(key.m, m) * base::ceil_div(key.n, n) < 12 && m * n * key.k > int64_t{2} << 20;
    };
    while (columns > 96 && few()) columns /= 2;
    while (rows > 32 && few()) rows /= 2;
  }
};

// A product as the library likes it, or cut into blocks that depend on the shape alone, each computed by one thread, so
// that neither the number of threads nor the load of the machine can change a bit. k is never cut.
class Plan {
 public:
  explicit Plan(const Key& key)
      : key_(key),
        rows_(key.m, Blocks(key).rows),
        columns_(key.n, Blocks(key).columns),
        workers_(key.blocks() && rows_.count() * columns_.count() > 1 ? key.threads : 1) {
    ThreadScope scope(key.blocks() ? 1 : key.threads);
    if (!key.blocks()) {
      products_[0] = std::make_unique<Product>(key, key.m, key.n, 1);
    } else {
      for (int64_t i : {int64_t{0}, rows_.count() - 1})
        for (int64_t j : {int64_t{0}, columns_.count() - 1})
          if (auto& p = product(i, j); !p)
            p = std::make_unique<Product>(key, rows_.size(i), columns_.size(j), workers_);
    }
    for (const auto& p : products_)
      if (p) scratch_bytes_ = std::max(scratch_bytes_, size_t(base::round_up(int64_t(p->scratch_bytes()), 64)));
    if (key.widen) wide_a_ = base::round_up(rows_.block * key.k, 16);
    if (key.rounds()) wide_c_ = base::round_up(rows_.block * key.n, 16);
    library_bytes_ = scratch_bytes_;
    scratch_bytes_ += size_t(wide_a_ + wide_c_) * sizeof(float);
  }

  void run(const Operands& p, Queue& queue) {
    double begin = base::now_s();
    char* scratch = static_cast<char*>(queue.scratch(size_t(workers_) * scratch_bytes_ + 64));
    int status = dnnl_success;
    if (!key_.blocks()) {
      ThreadScope scope(key_.threads);
      status = products_[0]->run(0, p, scratch);
    } else {
      status = run_blocks(p, scratch);
    }
    finish(status, base::now_s() - begin);
  }

  // What is counted of a run, or its error.
  void finish(int status, double seconds) {
    if (status != dnnl_success)
      base::fail(base::Exit::internal, "gemm: oneDNN returned {} for m {}, n {}, k {}", status, key_.m, key_.n, key_.k);
    ++calls_, seconds_ += seconds;
  }

  // Blocks of whole rows, for run_cpu_by_rows: how many, of how many rows each, by how many threads, with what scratch
  // of each.
  bool by_rows() const { return key_.blocks() && columns_.count() == 1; }
  int64_t row_blocks() const { return rows_.count(); }
  int64_t rows_of_block() const { return rows_.block; }
  int workers() const { return workers_; }
  size_t scratch_bytes() const { return scratch_bytes_; }

  // Block of rows i, of columns j, by one thread whose scratch is `own`. Does not throw.
  int run_block(const Operands& p, int64_t i, int64_t j, int worker, char* own) {
    const int64_t row_step = key_.trans_a ? 1 : key_.lda, column_step = key_.trans_b ? key_.ldb : 1;
    const int64_t a_size = key_.narrow || key_.widen ? 2 : 4, b_size = key_.narrow ? 2 : 4,
                  c_size = key_.narrow_c ? 2 : 4;
    const int64_t row = i * rows_.block, column = j * columns_.block;
    Operands block{p.c + (row * key_.ldc + column) * c_size,
                   p.a + row * row_step * a_size,
                   p.b + column * column_step * b_size,
                   p.bias ? p.bias + column : nullptr,
                   p.residual ? p.residual + row * key_.ldc + column : nullptr,
                   nullptr,
                   nullptr};
    const int status = key_.widen
                           ? run_widened_block(*product(i, j), worker, block, rows_.size(i), columns_.size(j), own)
                           : product(i, j)->run(worker, block, own);
    const int64_t packed = (row * key_.n + column) * c_size;
    if (key_.gelu) block.gelu = p.gelu + packed;
    if (key_.gelu_of) block.gelu_of = p.gelu_of + packed;
    if (key_.gelu || key_.gelu_of) activate(block, rows_.size(i), columns_.size(j));
    return status;
  }

  GemmUse use() const {
    return {key_.m,
            key_.n,
            key_.k,
            key_.trans_a,
            key_.trans_b,
            key_.bias,
            key_.residual,
            key_.accumulate,
            calls_,
            seconds_,
            key_.narrow || key_.widen ? DType::bf16 : DType::f32,
            key_.narrow_c ? DType::bf16 : DType::f32,
            key_.gelu,
            key_.gelu_of};
  }
  void reset_use() { calls_ = 0, seconds_ = 0; }

 private:
  std::unique_ptr<Product>& product(int64_t i, int64_t j) {
    return products_[(rows_.last(i) ? 2 : 0) + (columns_.last(j) ? 1 : 0)];
  }

  int run_blocks(const Operands& p, char* scratch) {
    ThreadScope scope(1);  // inherited by the workers
    std::atomic<int> status{dnnl_success};
    int64_t blocks = rows_.count() * columns_.count();
    // All threads or one: OpenMP ends threads that a smaller team leaves over, and starts others for the next op.
#pragma omp parallel for num_threads(workers_) schedule(dynamic, 1)
    for (int64_t t = 0; t < blocks; ++t) {
      const int worker = omp_get_thread_num();
      const int s =
          run_block(p, t % rows_.count(), t / rows_.count(), worker, scratch + size_t(worker) * scratch_bytes_);
      if (s != dnnl_success) status = s;
    }
    return status;
  }

  // A block whose a, and c if it is bf16, become floats while they are in cache.
  dnnl_status_t run_widened_block(Product& product, int worker, const Operands& block, int64_t rows, int64_t columns,
                                  char* own) {
    const VectorTable& table = vector_table();
    float *a = reinterpret_cast<float*>(own + library_bytes_), *c = a + wide_a_;
    for (int64_t r = 0; r < rows; ++r)
      table.from_bf16(a + r * key_.k, reinterpret_cast<const uint16_t*>(block.a) + r * key_.lda, key_.k);
    Operands wide = block;
    wide.a = reinterpret_cast<char*>(a);
    if (key_.rounds()) wide.c = reinterpret_cast<char*>(c);
    dnnl_status_t status = product.run(worker, wide, own);
    for (int64_t r = 0; key_.rounds() && r < rows; ++r)
      table.to_bf16(reinterpret_cast<uint16_t*>(block.c) + r * key_.ldc, c + r * key_.n, columns);
    return status;
  }

  // GELU of a block, or its derivative.
  void activate(const Operands& block, int64_t rows, int64_t columns) const {
    vector_table().with(key_.narrow_c ? DType::bf16 : DType::f32, [&](const auto& loops, auto element) {
      using T = decltype(element);
      auto at = [](char* p, int64_t offset) { return reinterpret_cast<T*>(p) + offset; };
      for (int64_t r = 0; r < rows; ++r) {
        T* c = at(block.c, r * key_.ldc);
        if (key_.gelu) loops.gelu_forward(at(block.gelu, r * key_.n), c, columns);
        if (key_.gelu_of) loops.gelu_backward(c, c, at(block.gelu_of, r * key_.n), columns);
      }
    });
  }

  Key key_;
  Cut rows_, columns_;
  int workers_;
  std::unique_ptr<Product> products_[4];
  size_t library_bytes_ = 0, scratch_bytes_ = 0;  // of a worker: the library's; with its widened blocks
  int64_t wide_a_ = 0, wide_c_ = 0;               // floats of these
  int64_t calls_ = 0;
  double seconds_ = 0;
};

// Plans are kept for good: a run has a few dozen shapes. Per calling thread, so that nothing needs a lock.
thread_local std::map<Key, std::unique_ptr<Plan>> plans;

Plan& plan_for(const Key& key) {
  auto it = plans.find(key);
  if (it == plans.end()) {
    try {
      it = plans.emplace(key, std::make_unique<Plan>(key)).first;
    } catch (const dnnl::error& e) {
      base::fail(base::Exit::internal, "gemm: oneDNN cannot do m {}, n {}, k {}, lda {}, ldb {}, ldc {}: {}", key.m,
                 key.n, key.k, key.lda, key.ldb, key.ldc, e.what());
    }
  }
  return *it->second;
}

std::atomic<bool> g_emulate{false};  // only tests set it

constexpr size_t kMostByRows = 4;

// Floats that bf16 operands are widened to; of the calling thread, as large as the largest product.
struct Wide {
  std::vector<float> a, b, c, bias[kMostByRows];
  static float* room(std::vector<float>& v, int64_t count) {
    if (int64_t(v.size()) < count) v.resize(size_t(count));
    return v.data();
  }
};
thread_local Wide wide;

View widened(const View& x, std::vector<float>& room, Queue& queue) {
  View y = device::view(Wide::room(room, x.count), x.count);
  run_cpu(Cast{.y = y, .x = x}, queue);
  return y;
}

Key key_of(const Gemm& a, const Queue& queue) {
  const bool bf16 = a.a.type == DType::bf16, narrow = bf16 && bf16_is_native();
  Key key{.m = a.m,
          .n = a.n,
          .k = a.k,
          .lda = a.leading_of_a(),
          .ldb = a.leading_of_b(),
          .ldc = a.leading_of_c(),
          .trans_a = a.trans_a,
          .trans_b = a.trans_b,
          .bias = !a.bias.none(),
          .residual = !a.residual.none(),
          .accumulate = a.write == Write::accumulate,
          .fixed_order = queue.fixed_order(),
          .narrow = narrow,
          .narrow_c = a.c.type == DType::bf16,
          .gelu = !a.gelu.none(),
          .gelu_of = !a.gelu_of.none(),
          .threads = queue.threads()};
  // Of a stored transposed a block is a strip of every row: it is widened as a whole, like what is not cut.
  key.widen = bf16 && !narrow && !a.trans_a && (key.blocks() || a.m >= 192 * queue.threads());
  return key;
}

// Of the i-th of products that run at the same time.
Operands operands_of(const Gemm& a, size_t i, Queue& queue) {
  const View bias = a.bias.none() || a.bias.type == DType::f32 ? a.bias : widened(a.bias, wide.bias[i], queue);
  CHECK(a.residual.none() || a.residual.data != a.c.data, "gemm: residual may not be c");
  return {static_cast<char*>(a.c.data),
          static_cast<char*>(a.a.data),
          static_cast<char*>(a.b.data),
          bias.none() ? nullptr : bias.f32(),
          a.residual.none() ? nullptr : a.residual.f32(),
          static_cast<char*>(a.gelu.data),
          static_cast<char*>(a.gelu_of.data)};
}

// What is done to c, where no block was in cache.
void activate_all(const Gemm& a, Queue& queue) {
  CHECK(a.leading_of_c() == a.n || (a.gelu.none() && a.gelu_of.none()), "gemm: GELU of rows that are apart");
  if (!a.gelu.none()) run_cpu(GeluForward{.y = a.gelu, .x = a.c}, queue);
  if (!a.gelu_of.none()) run_cpu(GeluBackward{.dx = a.c, .dy = a.c, .x = a.gelu_of}, queue);
}

// The f32 product of what bf16 operands hold.
void run_widened(const Gemm& a, Queue& queue) {
  Gemm f = a;
  f.a = widened(a.a, wide.a, queue), f.b = widened(a.b, wide.b, queue);
  if (!a.bias.none() && a.bias.type != DType::f32) f.bias = widened(a.bias, wide.bias[0], queue);
  if (a.c.type == DType::f32) return run_cpu(f, queue);
  f.gelu = f.gelu_of = {};
  // Rows of c that are apart: what lies between them must stay, so each is narrowed alone.
  f.c = device::view(Wide::room(wide.c, a.m * a.n), a.m * a.n), f.ldc = 0;
  run_cpu(f, queue);
  for (int64_t r = 0, n = a.leading_of_c() == a.n ? a.m : 1; r < a.m; r += n)
    run_cpu(Cast{.y = a.c.slice(r * a.leading_of_c(), n * a.n), .x = f.c.slice(r * a.n, n * a.n)}, queue);
  activate_all(a, queue);
}

void for_rows_of_c(const Gemm& a, Queue& queue, auto&& f) {
  float* c = a.c.f32();
  for_ranges(queue, a.m, a.m * a.n, 1, [&](int64_t r, int64_t end) {
    for (; r < end; ++r) f(c + r * a.leading_of_c(), r);
  });
}

}  // namespace

// With AVX-512 alone the library makes such primitives too, and converts inside: that is slower than f32.
bool bf16_is_native() { return has_isa(dnnl::cpu_isa::avx512_core_bf16) && !g_emulate; }
void force_bf16_emulation(bool forced) { g_emulate = forced; }

std::vector<GemmUse> gemm_uses() {
  std::vector<GemmUse> uses;
  for (const auto& [key, plan] : plans)
    if (GemmUse use = plan->use(); use.calls) uses.push_back(use);
  return uses;
}

void reset_gemm_uses() {
  for (const auto& [key, plan] : plans) plan->reset_use();
}

void run_cpu(const Gemm& a, Queue& queue) {
  CHECK(a.a.type != DType::f16, "{}: products of f16 are for GPUs", name_of(a.op));
  if (!a.sums.none()) {
    Gemm product = a;
    product.sums = {};
    run_cpu(product, queue);
    return run_cpu(sums_of(a), queue);
  }
  if (a.m == 0 || a.n == 0) return;
  Key key = key_of(a, queue);
  if (a.a.type == DType::bf16 && (a.k == 0 || !(key.narrow || key.widen))) return run_widened(a, queue);
  Operands p = operands_of(a, 0, queue);
  if (a.k == 0) {  // an empty sum
    if (key.accumulate) return;
    for_rows_of_c(a, queue, [&](float* c, int64_t r) {
      for (int64_t j = 0; j < a.n; ++j) c[j] = (p.bias ? p.bias[j] : 0) + (p.residual ? p.residual[r * a.n + j] : 0);
    });
    return activate_all(a, queue);
  }
  if (key.residual && key.ldc != a.n) {  // the library's binary post-op addresses both with one stride
    CHECK(!key.narrow_c, "gemm: a residual with rows of c that are apart, and c in bf16");
    for_rows_of_c(a, queue,
                  [&](float* c, int64_t r) { std::memcpy(c, p.residual + r * a.n, size_t(a.n) * sizeof(float)); });
    key.residual = false, p.residual = nullptr, key.accumulate = true;
  }
  if (key.widen) p.b = static_cast<char*>(widened(a.b, wide.b, queue).data);
  plan_for(key).run(p, queue);
}

bool run_cpu_by_rows(std::span<const Gemm> products, Queue& queue) {
  CHECK(products.size() <= kMostByRows, "gemm: {} products by rows, {} at most", products.size(), kMostByRows);
  Plan* plan[kMostByRows] = {};
  Operands operands[kMostByRows];
  size_t scratch_bytes = 0;
  for (size_t i = 0; i < products.size(); ++i) {
    const Gemm& a = products[i];
    check(a);
    if (a.m == 0 || a.n == 0 || a.k == 0 || a.trans_a || a.a.type == DType::f16 || !a.sums.none()) return false;
    const Key key = key_of(a, queue);
    // What one product does before its blocks, all of them together would need room for.
    const bool alone = (a.a.type == DType::bf16 && !key.narrow) || (key.residual && key.ldc != a.n);
    if (alone || !key.blocks()) return false;
    plan[i] = &plan_for(key), operands[i] = operands_of(a, i, queue);
    if (!plan[i]->by_rows() || plan[i]->row_blocks() != plan[0]->row_blocks() ||
        plan[i]->rows_of_block() != plan[0]->rows_of_block())
      return false;
    scratch_bytes = std::max(scratch_bytes, plan[i]->scratch_bytes());
  }
  const double begin = base::now_s();
  const int workers = plan[0]->workers(), count = int(products.size());
  char* scratch = static_cast<char*>(queue.scratch(size_t(workers) * scratch_bytes + 64));
  double seconds[kMostByRows] = {};
  int status[kMostByRows] = {};
  {
    ThreadScope scope(1);  // inherited by the workers
#pragma omp parallel for num_threads(workers) schedule(dynamic, 1) reduction(+ : seconds) reduction(max : status)
    for (int64_t block = 0; block < plan[0]->row_blocks(); ++block) {
      const int worker = omp_get_thread_num();
      double before = base::now_s();
      for (int i = 0; i < count; ++i) {
        const int s = plan[i]->run_block(operands[i], block, 0, worker, scratch + size_t(worker) * scratch_bytes);
        status[i] = std::max(status[i], s);
        const double now = base::now_s();
        seconds[i] += now - before, before = now;
      }
    }
  }
  double busy = 0;
  for (double s : seconds) busy += s;
  const double wall = base::now_s() - begin;
  for (int i = 0; i < count; ++i) {
    const double share = wall * seconds[i] / busy;
    plan[i]->finish(status[i], share);
    const Cost c = cost(products[size_t(i)]);
    queue.account(int(Gemm::op), c.flops, c.bytes, share);
  }
  return true;
}

void prepare_cpu(const Gemm& a, const Queue& queue) {
  if (a.m == 0 || a.n == 0 || a.k == 0) return;
  Gemm f = a;
  if (Key key = key_of(a, queue); a.a.type == DType::bf16 && !(key.narrow || key.widen)) {  // as run_widened does it
    f.a.type = f.b.type = DType::f32;
    if (a.c.type == DType::bf16) f.c.type = DType::f32, f.ldc = 0, f.gelu = f.gelu_of = {};
  }
  plan_for(key_of(f, queue));
}

}  // namespace kernels
