"""The int8 tensor-core ceiling: a library product (torch, where it is installed), used for this figure alone."""

import torch

for m in (512, 2048, 8192):
    a = torch.randint(-127, 127, (m, 2560), dtype=torch.int8, device="cuda")
    b = torch.randint(-127, 127, (10240, 2560), dtype=torch.int8, device="cuda").t()
    for _ in range(3):
        torch._int_mm(a, b)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(20):
        torch._int_mm(a, b)
    end.record()
    torch.cuda.synchronize()
    us = begin.elapsed_time(end) * 50
    print(f"int8 {m} x 2560 x 10240: {us:.1f} us, {2 * m * 2560 * 10240 / us / 1e6:.0f} TOPS")
a = torch.randint(-127, 127, (8192, 8192), dtype=torch.int8, device="cuda")
b = torch.randint(-127, 127, (8192, 8192), dtype=torch.int8, device="cuda").t()
for _ in range(3):
    torch._int_mm(a, b)
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
begin.record()
for _ in range(10):
    torch._int_mm(a, b)
end.record()
torch.cuda.synchronize()
print(f"int8 8192^3: {2 * 8192**3 / (begin.elapsed_time(end) / 10 * 1e9):.0f} TOPS")
