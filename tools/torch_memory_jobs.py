"""The jobs of torch_memory.py. Each is a function of torch, a random number generator, a number of steps and a device.
It draws the shape of each step, and returns the shapes and a function that runs a step of one shape and returns its loss."""

WIDTH = 512
WORDS = 16_000  # of the vocabulary of language models


def trained(optimizer, loss_of):
    """Returns the step of a training, given the loss of a shape."""

    def step(shape):
        loss = loss_of(shape)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def encoder(torch, width, heads, device):
    nn = torch.nn
    layers = [nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, dropout=0.0) for _ in range(6)]
    return nn.Sequential(*layers).to(device)


def transformer(torch, draw, steps, device):
    """Trains a transformer with AdamW; batch and length vary."""
    model = encoder(torch, WIDTH, 8, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    shapes = [(draw.choice([4, 8, 16]), draw.randrange(64, 1017, 8), WIDTH) for _ in range(steps)]
    return shapes, trained(optimizer, lambda shape: model(torch.randn(shape, device=device)).square().mean())


def small(torch, draw, steps, device):
    """Trains a transformer so small that the GPU waits for the host."""
    model = encoder(torch, 128, 4, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    shapes = [(draw.choice([2, 4, 8]), draw.randrange(16, 128, 8), 128) for _ in range(steps)]
    return shapes, trained(optimizer, lambda shape: model(torch.randn(shape, device=device)).square().mean())


def cnn(torch, draw, steps, device):
    """Trains a convolutional network with momentum; the sides of the images vary."""
    nn = torch.nn
    layers = []
    for i in range(8):
        layers += [nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    shapes = [(16, 3, draw.randrange(96, 225, 32), draw.randrange(96, 225, 32)) for _ in range(steps)]
    return shapes, trained(optimizer, lambda shape: model(torch.randn(shape, device=device)).square().mean())


def unet_of(torch):
    nn = torch.nn

    def block(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU())

    class UNet(nn.Module):
        def __init__(self, channels=(64, 128, 256)):
            super().__init__()
            pairs = list(zip(channels, channels[1:]))
            self.first = nn.Sequential(block(3, channels[0]), block(channels[0], channels[0]))
            self.down = nn.ModuleList(
                nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), block(b, b), block(b, b)) for a, b in pairs)
            self.up = nn.ModuleList(nn.Sequential(block(a + b, a), block(a, a)) for a, b in reversed(pairs))
            self.last = nn.Conv2d(channels[0], 3, 1)

        def forward(self, x):
            skipped = [self.first(x)]
            for down in self.down:
                skipped.append(down(skipped[-1]))
            x = skipped.pop()
            for up in self.up:
                doubled = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2).flatten(4, 5).flatten(2, 3)
                x = up(torch.cat([doubled, skipped.pop()], 1))
            return self.last(x)

    return UNet()


def unet(torch, draw, steps, device):
    """Trains a U-Net with AdamW in bfloat16; the resolution varies."""
    model = unet_of(torch).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    shapes = [(4, 3, 64 * draw.randrange(2, 9), 64 * draw.randrange(2, 9)) for _ in range(steps)]

    def loss_of(shape):
        images = torch.randn(shape, device=device)
        with torch.autocast(device, torch.bfloat16):
            return (model(images) - images).float().square().mean()

    return shapes, trained(optimizer, loss_of)


def graph(torch, draw, steps, device):
    """Trains a graph network that passes messages; the numbers of nodes and edges vary."""
    nn, width = torch.nn, 128
    own = nn.ModuleList(nn.Linear(width, width) for _ in range(4)).to(device)
    message = nn.ModuleList(nn.Linear(width, width) for _ in range(4)).to(device)
    optimizer = torch.optim.AdamW([*own.parameters(), *message.parameters()], lr=1e-3)
    nodes = [draw.randrange(10_000, 60_001) for _ in range(steps)]
    shapes = [(n, n * draw.randrange(4, 11)) for n in nodes]

    def loss_of(shape):
        nodes, edges = shape
        h = torch.randn(nodes, width, device=device)
        source, target = torch.randint(nodes, (2, edges), device=device)
        for mine, theirs in zip(own, message):
            received = torch.zeros_like(h).index_add(0, target, theirs(h).index_select(0, source))
            h = torch.relu(mine(h) + received * (nodes / edges))
        return h.square().mean()

    return shapes, trained(optimizer, loss_of)


class Decoder:
    """A transformer of bfloat16 that decodes sequences, each with keys and values for its tokens."""

    width, heads, layers = 1024, 16, 8

    def __init__(self, torch, device):
        nn, width = torch.nn, self.width
        self.torch, self.device = torch, device
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width),
                           nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))])
            for _ in range(self.layers)).to(device, torch.bfloat16)

    def attend(self, q, k, v, causal):
        q, k, v = (x.view(1, len(x), self.heads, -1).transpose(1, 2) for x in (q, k, v))
        out = self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return out.transpose(1, 2).reshape(-1, self.width)

    def run(self, x, attention):
        """Returns the output for rows x; attention is called with the layer, the queries, the keys and the values."""
        for layer, (norm, qkv, out, mlp) in enumerate(self.blocks):
            x = x + out(attention(layer, *qkv(norm(x)).chunk(3, -1)))
            x = x + mlp(x)
        return self.torch.nn.functional.layer_norm(x, (self.width,))

    def prefill(self, tokens):
        """Returns the cache of a prompt of random tokens, and its last output."""
        cache = []

        def attention(_, q, k, v):
            cache.append([k.contiguous(), v.contiguous()])
            return self.attend(q, k, v, causal=True)

        x = self.torch.randn(tokens, self.width, device=self.device, dtype=self.torch.bfloat16)
        return cache, self.run(x, attention)[-1:].clone()

    def next(self, x, caches):
        """Returns the next output of each sequence, whose caches grow by a token."""

        def attention(layer, q, k, v):
            outs = []
            for i, cache in enumerate(caches):
                grown = [self.torch.cat([old, new[i : i + 1]]) for old, new in zip(cache[layer], (k, v))]
                cache[layer] = grown
                outs.append(self.attend(q[i : i + 1], *grown, causal=False))
            return self.torch.cat(outs)

        return self.run(x, attention)


def decoding(torch, draw, steps, device):
    """Decodes 16 sequences with growing caches. Each ends after its own number of tokens, and another begins."""
    model = Decoder(torch, device)
    count = 16

    def length():
        return draw.randrange(64, 4096), draw.randrange(4, 48)

    lengths = [[length() for _ in range(count)]]
    left = [tokens for _, tokens in lengths[0]]
    for _ in range(steps - 1):
        left = [n - 1 for n in left]
        lengths.append([length() if n == 0 else None for n in left])
        left = [new[1] if new else n for n, new in zip(left, lengths[-1])]
    caches, last = [None] * count, [None] * count

    @torch.no_grad()
    def step(begin):
        for i, new in enumerate(begin):
            if new:
                caches[i] = last[i] = None  # the memory of the sequence that ended comes first
                caches[i], last[i] = model.prefill(new[0])
        out = model.next(torch.cat(last), caches)
        last[:] = [row.clone() for row in out.split(1)]
        return out.float().square().mean() + out.float().mean()

    return lengths, step


def streams(torch, draw, steps, device):
    """Copies batches from the host on one stream ahead of three that compute and exchange tensors; 8 batches a step."""
    copies, first, second, third = (torch.cuda.Stream() for _ in range(4))
    width = 2048
    host = torch.randn(8192, width, pin_memory=True)
    weights = [torch.randn(width, width, device=device) / width**0.5 for _ in range(2)]
    shapes = [[draw.randrange(512, 8193, 64) for _ in range(8)] for _ in range(steps)]

    def fetch(rows):
        with torch.cuda.stream(copies):
            batch = host[:rows].to(device, non_blocking=True)
            return batch, copies.record_event()

    def after(stream, others, *tensors):
        """Makes stream wait for work of the others, and use their tensors."""
        for other in others:
            stream.wait_stream(other)
        for tensor in tensors:
            tensor.record_stream(stream)
        return torch.cuda.stream(stream)

    @torch.no_grad()
    def step(shape):
        main, losses = torch.cuda.current_stream(), []
        for stream in (copies, first, second, third):
            stream.wait_stream(main)
        fetched = fetch(shape[0])
        for rows in [*shape[1:], None]:
            x, ready = fetched
            fetched = fetch(rows) if rows else None
            first.wait_event(ready)
            with after(first, [], x):
                a = torch.relu(x @ weights[0])
            with after(second, [first], a):
                b = torch.relu(a @ weights[1])
            with after(third, [second], a, b, x):
                losses.append((a * b + x).square().mean())
        with after(main, [third], *losses):
            return torch.stack(losses).mean()

    return shapes, step


# ---- jobs with models of other libraries, whose weights are random


def llama_of(torch, layers, width, dtype, device):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=WORDS, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
                         num_attention_heads=width // 64, num_key_value_heads=width // 256, max_position_embeddings=4096)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)


def tuned(torch, model, draw, steps, device):
    """Returns the shapes and the step of a training of a language model in bfloat16; batch and length vary."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    shapes = [(draw.choice([4, 6, 8]), draw.randrange(128, 1025, 8)) for _ in range(steps)]

    def loss_of(shape):
        words = torch.randint(WORDS, shape, device=device)
        with torch.autocast(device, torch.bfloat16):
            return model(input_ids=words, labels=words, use_cache=False).loss

    return shapes, trained(optimizer, loss_of)


def llama(torch, draw, steps, device):
    """Fine-tunes all weights of a Llama with gradient checkpoints."""
    model = llama_of(torch, 10, 1024, torch.float32, device).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return tuned(torch, model, draw, steps, device)


def lora(torch, draw, steps, device):
    """Trains low-rank adapters of a Llama in bfloat16."""
    from peft import LoraConfig, get_peft_model

    model = llama_of(torch, 12, 1536, torch.bfloat16, device).train()
    return tuned(torch, get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")), draw, steps, device)


def generate(torch, draw, steps, device):
    """Generates text of a Llama with the library's cache, which grows by a token at a time."""
    model = llama_of(torch, 8, 1024, torch.bfloat16, device).eval()
    shapes = [(draw.choice([8, 16, 24]), draw.randrange(128, 2049, 8), draw.randrange(8, 25)) for _ in range(steps)]

    @torch.no_grad()
    def step(shape):
        batch, length, more = shape
        words = torch.randint(3, WORDS, (batch, length), device=device)
        out = model.generate(words, attention_mask=torch.ones_like(words), max_new_tokens=more, min_new_tokens=more,
                             do_sample=False, pad_token_id=0)
        return out.double().mean()

    return shapes, step


def resnet(torch, draw, steps, device):
    """Trains a ResNet-50 in bfloat16, channels last; the number and the side of the images vary."""
    from torchvision.models import resnet50

    model = resnet50().to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    shapes = [(draw.choice([32, 48, 64, 96]), draw.randrange(128, 289, 32)) for _ in range(steps)]

    def loss_of(shape):
        count, side = shape
        images = torch.randn(count, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device, torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images), torch.randint(1000, (count,), device=device))

    return shapes, trained(optimizer, loss_of)


JOBS = {"transformer": transformer, "cnn": cnn, "decoding": decoding, "unet": unet, "graph": graph, "small": small,
        "streams": streams, "llama": llama, "lora": lora, "generate": generate, "resnet": resnet}
NEEDS = {"llama": ["transformers"], "lora": ["transformers", "peft"], "generate": ["transformers"], "resnet": ["torchvision"]}
