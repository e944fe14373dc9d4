// SPDX-License-Identifier: Apache-2.0
// Symmetric matrices in double: Cholesky factors and eigenvalues.
#pragma once

#include <cstdint>
#include <vector>

namespace eval {

// Returns the eigenvalues of a symmetric matrix [n, n], in rising order: Householder reflections
// make it tridiagonal, and bisection with Sturm counts finds each value (Golub and Van Loan, Matrix
// Computations, 8.3.1 and 8.4.1). Errors are some rounding units of the largest magnitude. The bits
// do not depend on `threads`. `a` is workspace.
std::vector<double> symmetric_eigenvalues(std::vector<double>& a, int64_t n, int threads);

// Replaces the lower triangle of a symmetric matrix [n, n] by its Cholesky factor L, with A = L L'.
// Returns false if the matrix is not positive definite.
bool factorise(std::vector<double>& a, int64_t n);

}  // namespace eval
