"""The jobs that record.py records. Each takes torch, a random number generator and a number of steps."""

from torch_memory_jobs import Decoder, unet_of

KIB = 1 << 10
WIDTH, LAYERS, VOCABULARY = 512, 6, 4096


def train(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def encoder(torch):
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return torch.nn.Sequential(
        torch.nn.Embedding(VOCABULARY, WIDTH),
        torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        torch.nn.Linear(WIDTH, VOCABULARY),
    ).cuda()


def transformer(torch, draw, steps):
    """Trains a transformer with AdamW; batch and length are random in each step."""
    model = encoder(torch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        shape = (draw.randint(4, 16), draw.randint(64, 1024))
        tokens = torch.randint(VOCABULARY, shape, device="cuda")
        labels = torch.randint(VOCABULARY, shape, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
        train(optimizer, loss)


def cnn(torch, draw, steps):
    """Trains a convolutional network with momentum; the side of the images is random in each step."""
    layers, channels = [], 3
    for _ in range(8):
        layers += [torch.nn.Conv2d(channels, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        channels = 64
    layers += [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        side = draw.randint(96, 224)
        images = torch.randn(32, 3, side, side, device="cuda")
        labels = torch.randint(10, (32,), device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        train(optimizer, loss)


def cache(torch, draw, steps):
    """Keeps up to 400 blocks of 1 KiB to 64 MiB, log-uniform, and drops random ones."""
    live = []
    for _ in range(steps):
        if len(live) < 400 and (not live or draw.random() < 0.6):
            live.append(torch.empty(int(KIB * 2 ** draw.uniform(0, 16)), dtype=torch.uint8, device="cuda"))
        else:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()


def streams(torch, draw, steps):
    """Up to 200 blocks of 0.5 KiB to 16 MiB on 8 streams, a fifth of them used on a second stream."""
    all_streams = [torch.cuda.Stream() for _ in range(8)]
    live = []
    for _ in range(steps):
        if len(live) == 200 or live and draw.random() >= 0.6:
            live[draw.randrange(len(live))] = live[-1]
            live.pop()
            continue
        own, other = draw.sample(all_streams, 2)
        with torch.cuda.stream(own):
            block = torch.empty(int(KIB / 2 * 2 ** draw.uniform(0, 15)), dtype=torch.uint8, device="cuda")
            block.zero_()
        if draw.random() < 0.2:
            other.wait_stream(own)
            with torch.cuda.stream(other):
                block.add_(1)
            block.record_stream(other)
        live.append(block)


def inference(torch, draw, steps):
    """Runs a transformer forwards; batch and length are random in each step."""
    model = encoder(torch).eval()
    with torch.no_grad():
        for _ in range(steps):
            shape = (draw.randint(1, 32), draw.randint(16, 512))
            model(torch.randint(VOCABULARY, shape, device="cuda")).argmax(-1)


def diffusion(torch, draw, steps):
    """Samples images with a U-Net and classifier-free guidance; the number and the resolution are random."""
    model = unet_of(torch).cuda().bfloat16()
    classes = torch.nn.Embedding(1000, 3).cuda().bfloat16()
    images = []
    with torch.no_grad():
        for _ in range(steps):
            batch, height, width = draw.randint(1, 4), 64 * draw.randint(4, 12), 64 * draw.randint(4, 12)
            x = torch.randn(batch, 3, height, width, device="cuda", dtype=torch.bfloat16)
            hint = classes(torch.randint(1000, (batch,), device="cuda"))[:, :, None, None]
            for _ in range(10):
                guided, plain = model(torch.cat([x + hint, x])).chunk(2)
                x = x - (plain + (guided - plain) * 4) * 0.1
            images = [*images[-7:], (x.clamp(-1, 1) * 127.5 + 127.5).to(torch.uint8)]


class ServedDecoder(Decoder):
    """A decoder with few layers, so that a trace has many steps."""

    layers = 2


def serving(torch, draw, steps):
    """Decodes with continuous batching: requests come and go at random, and their caches grow by a token a step."""
    model = ServedDecoder(torch, "cuda")
    caches, last, left = [], [], []  # of each request: its keys and values, its last output, its tokens to come
    with torch.no_grad():
        for _ in range(steps):
            if not left or len(left) < 12 and draw.random() < 0.4:
                cache, out = model.prefill(draw.randint(32, 2048))
                caches.append(cache)
                last.append(out)
                left.append(draw.randint(4, 40))
            out = model.next(torch.cat(last), caches)
            last = [out[i : i + 1].clone() for i in range(len(left))]
            left = [tokens - 1 for tokens in left]
            staying = [i for i, tokens in enumerate(left) if tokens]
            caches, last, left = ([column[i] for i in staying] for column in (caches, last, left))


def lora(torch, draw, steps):
    """Trains adapters of a frozen transformer in bfloat16; a step sums gradients of 4 batches of random length."""
    nn, functional, width, trained = torch.nn, torch.nn.functional, 2 * WIDTH, []

    def adapted(inputs, outputs):
        frozen = nn.Linear(inputs, outputs).cuda().bfloat16().requires_grad_(False)
        adapter = nn.Sequential(nn.Linear(inputs, 16, bias=False), nn.Linear(16, outputs, bias=False)).cuda().bfloat16()
        trained.extend(adapter.parameters())
        return lambda x: frozen(x) + adapter(x)

    embedding = nn.Embedding(VOCABULARY, width).cuda().bfloat16().requires_grad_(False)
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    layers = [[adapted(*shape) for shape in shapes] for _ in range(LAYERS)]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def logits(tokens):
        x = embedding(tokens)
        for qkv, out, up, down in layers:
            parts = qkv(functional.layer_norm(x, (width,))).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (16, width // 16)).transpose(1, 2) for part in parts)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(seen.transpose(1, 2).flatten(2))
            x = x + down(functional.gelu(up(functional.layer_norm(x, (width,)))))
        return functional.linear(x, embedding.weight).float()

    for _ in range(steps):
        for _ in range(4):
            tokens = torch.randint(VOCABULARY, (draw.randint(1, 4), draw.randint(64, 1024)), device="cuda")
            loss = functional.cross_entropy(logits(tokens).flatten(0, 1), tokens.flatten())
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def moe(torch, draw, steps):
    """Trains two layers of 8 experts with AdamW, each expert on a stream of its own; the tokens of each are random."""
    nn = torch.nn

    def expert():
        return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).cuda()

    layers = [[expert() for _ in range(8)] for _ in range(2)]
    optimizer = torch.optim.AdamW([p for experts in layers for expert in experts for p in expert.parameters()])
    main, lanes = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in range(8)]

    def mixed(experts, x, tokens):
        outs = []
        for expert, lane in zip(experts, lanes):
            rows = torch.randint(tokens, (1 + int(tokens / 2 * draw.random() ** 2),), device="cuda")
            chosen = x.index_select(0, rows)
            lane.wait_stream(main)
            chosen.record_stream(lane)
            with torch.cuda.stream(lane):
                outs.append((rows, expert(chosen)))
        for lane, (rows, out) in zip(lanes, outs):
            main.wait_stream(lane)
            out.record_stream(main)
            x = x.index_add(0, rows, out)
        return x

    for _ in range(steps):
        tokens = draw.randint(1024, 8192)
        x = torch.randn(tokens, WIDTH, device="cuda")
        for experts in layers:
            x = mixed(experts, x, tokens)
        train(optimizer, x.square().mean())


def reinforcement(torch, draw, steps):
    """Plays a random number of games, keeps their frames in a replay buffer, and trains on parts of it."""
    nn = torch.nn
    policy = nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
        nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 16)).cuda()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    buffer = []  # the number of frames of each rollout, and the frames
    for _ in range(steps):
        games, frames = draw.randint(8, 64), []
        with torch.no_grad():
            for _ in range(draw.randint(8, 40)):
                frames.append(torch.randint(256, (games, 4, 84, 84), device="cuda", dtype=torch.uint8))
                policy(frames[-1].float() / 255).argmax(-1)
        buffer.append((games * len(frames), torch.cat(frames)))
        while sum(count for count, _ in buffer) > 10_000:
            buffer.pop(0)
        for _ in range(draw.randint(2, 6)):
            parts = [kept[torch.randint(count, (draw.randint(16, 128),), device="cuda")]
                     for count, kept in draw.sample(buffer, min(4, len(buffer)))]
            train(optimizer, (policy(torch.cat(parts).float() / 255).amax(-1) - 1).square().mean())


def graph(torch, draw, steps):
    """Trains a graph network on sampled neighbours; the numbers of nodes and edges of each hop are random."""
    nodes, widths = 200_000, [128, 256, 256, 64]
    features = torch.randn(nodes, widths[0], device="cuda")
    layers = [(torch.nn.Linear(a, b).cuda(), torch.nn.Linear(a, b).cuda()) for a, b in zip(widths, widths[1:])]
    optimizer = torch.optim.AdamW([p for pair in layers for linear in pair for p in linear.parameters()], lr=1e-3)
    for _ in range(steps):
        counts = [draw.randint(256, 2048)]  # of nodes, from the targets outwards
        for _ in layers:
            counts.append(int(counts[-1] * draw.uniform(2, 5)))
        h = features[torch.randint(nodes, (counts[-1],), device="cuda")]
        for (own, theirs), width, sources, targets in zip(layers, widths, counts[:0:-1], counts[-2::-1]):
            edges = targets * draw.randint(5, 15)
            source = torch.randint(sources, (edges,), device="cuda")
            target = torch.randint(targets, (edges,), device="cuda")
            received = torch.zeros(targets, width, device="cuda").index_add(0, target, h.index_select(0, source))
            h = torch.relu(own(h[:targets]) + theirs(received))
        labels = torch.randint(widths[-1], (counts[0],), device="cuda")
        train(optimizer, torch.nn.functional.cross_entropy(h, labels))


def detection(torch, draw, steps):
    """Trains a detector; images of random sizes are padded for each batch, with random numbers of proposals."""
    nn, functional = torch.nn, torch.nn.functional
    layers, channels = [], [3, 32, 64, 128, 256]
    for a, b in zip(channels, channels[1:]):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    backbone = nn.Sequential(*layers).cuda()
    head = nn.Sequential(nn.Linear(256 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 81)).cuda()
    optimizer = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.01, momentum=0.9)
    for _ in range(steps):
        sizes = [(draw.randint(256, 1024), draw.randint(256, 1024)) for _ in range(draw.randint(2, 8))]
        height, width = (max(sides) for sides in zip(*sizes))
        padded = [functional.pad(torch.rand(3, h, w, device="cuda"), (0, width - w, 0, height - h)) for h, w in sizes]
        maps, losses = backbone(torch.stack(padded)), []
        for i in range(len(sizes)):
            boxes = torch.rand(draw.randint(100, 2000), 4, device="cuda")
            overlaps = torch.minimum(boxes[:, None], boxes[None]).prod(-1)  # as the suppression of double boxes needs
            count = draw.randint(10, 300)
            points = torch.rand(1, count * 7, 7, 2, device="cuda") * 2 - 1
            crops = functional.grid_sample(maps[i : i + 1], points, align_corners=False)  # 1, 256, count * 7, 7
            rows = crops[0].unflatten(1, (count, 7)).transpose(0, 1).flatten(1)
            labels = torch.randint(81, (count,), device="cuda")
            losses.append(functional.cross_entropy(head(rows), labels) + overlaps.mean())
        train(optimizer, torch.stack(losses).mean())


def speech(torch, draw, steps):
    """Trains a recurrent recognizer; utterances of similar length form a batch."""
    nn, width = torch.nn, 384
    front = nn.Sequential(nn.Conv1d(80, width, 3, stride=2, padding=1), nn.GELU(),
                          nn.Conv1d(width, width, 3, stride=2, padding=1), nn.GELU()).cuda()
    recurrent = nn.GRU(width, width, num_layers=3, batch_first=True, bidirectional=True).cuda()
    last = nn.Linear(2 * width, 64).cuda()
    optimizer = torch.optim.AdamW([p for part in (front, recurrent, last) for p in part.parameters()], lr=1e-4)
    for _ in range(steps):
        frames = sorted(draw.randint(200, 3000) for _ in range(32))
        while frames:
            count = max(1, 16_000 // frames[-1])  # utterances in the batch, which bounds its frames
            batch = frames[-count:]
            del frames[-count:]
            signal = torch.randn(len(batch), 80, batch[-1], device="cuda")
            states = recurrent(front(signal).transpose(1, 2))[0]
            chances = last(states).log_softmax(-1).transpose(0, 1)
            letters = tuple(n // 40 for n in batch)
            labels = torch.randint(1, 64, (len(batch), max(letters)), device="cuda")
            times = tuple((n + 3) // 4 for n in batch)  # each convolution halves the frames, rounded up
            train(optimizer, nn.functional.ctc_loss(chances, labels, times, letters, zero_infinity=True))


# name -> the job, and the number of steps whose trace has at most about record.MAX_BYTES
JOBS = {
    "transformer": (transformer, 30),
    "cnn": (cnn, 80),
    "cache": (cache, 12000),
    "streams": (streams, 12000),
    "inference": (inference, 120),
    "diffusion": (diffusion, 20),
    "serving": (serving, 100),
    "lora": (lora, 10),
    "moe": (moe, 25),
    "reinforcement": (reinforcement, 26),
    "graph": (graph, 120),
    "detection": (detection, 60),
    "speech": (speech, 20),
}
