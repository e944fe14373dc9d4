// SPDX-License-Identifier: Apache-2.0
// Replaces CUDA's header in the include path. Kernels use its conversions in code for the GPU only.
#pragma once
