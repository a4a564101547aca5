import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.LongBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.storm.Config;
import org.apache.storm.LocalCluster;
import org.apache.storm.spout.SpoutOutputCollector;
import org.apache.storm.task.OutputCollector;
import org.apache.storm.task.TopologyContext;
import org.apache.storm.topology.OutputFieldsDeclarer;
import org.apache.storm.topology.TopologyBuilder;
import org.apache.storm.topology.base.BaseRichSpout;
import org.apache.storm.topology.base.BaseWindowedBolt;
import org.apache.storm.tuple.Fields;
import org.apache.storm.tuple.Tuple;
import org.apache.storm.tuple.Values;
import org.apache.storm.windowing.TupleWindow;

/** Sums of sliding windows: a spout that waits for acks, and two windowed bolts that look at new and expired tuples. */
public final class SlidingSum {
    static final int TASKS = 2;
    static LongBuffer events;
    static int count;
    static int warm;
    static int pending;
    static int slide;
    static long last;
    static final Map<Long, AtomicLong> sums = new ConcurrentHashMap<>();
    static final CountDownLatch over = new CountDownLatch(TASKS);
    static volatile long beganNanos;
    static volatile long beganCpu;

    /** Arguments: file of events (three 64-bit numbers each), length, slide, lag (ms), pending, warm-up events, directory. */
    public static void main(String[] arguments) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0])));
        events = bytes.order(ByteOrder.LITTLE_ENDIAN).asLongBuffer();
        count = events.capacity() / 3;
        int length = Integer.parseInt(arguments[1]);
        slide = Integer.parseInt(arguments[2]);
        int lag = Integer.parseInt(arguments[3]);
        pending = Integer.parseInt(arguments[4]);
        warm = Integer.parseInt(arguments[5]);
        long newest = 0;
        for (int at = 0; at < count; at++) {
            newest = Math.max(newest, events.get(3 * at));
        }
        last = (newest - lag - 1000) / slide * slide; // all tasks have events a second later
        TopologyBuilder builder = new TopologyBuilder();
        builder.setSpout("readings", new Readings(), 1);
        builder.setBolt("sum", new Sum()
                        .withWindow(BaseWindowedBolt.Duration.of(length), BaseWindowedBolt.Duration.of(slide))
                        .withTimestampField("ts")
                        .withLag(BaseWindowedBolt.Duration.of(lag))
                        .withWatermarkInterval(BaseWindowedBolt.Duration.of(100)), TASKS)
                .fieldsGrouping("readings", new Fields("sensor"));
        Config config = new Config();
        config.setNumWorkers(1);
        config.setMaxSpoutPending(pending);
        config.setMessageTimeoutSecs(3600);
        new LocalCluster().submitTopology("bench", config, builder.createTopology());
        over.await();
        double seconds = (System.nanoTime() - beganNanos) / 1e9;
        double cpu = (cpu() - beganCpu) / 1e9;
        StringBuilder found = new StringBuilder();
        new TreeMap<>(sums).forEach((end, sum) -> found.append(' ').append(end).append(':').append(sum));
        System.out.printf("RESULT %d %.6f %.6f%s%n", count - warm, seconds, cpu, found);
        System.out.flush();
        Runtime.getRuntime().halt(0); // an orderly end takes Storm half a minute
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    static final class Readings extends BaseRichSpout {
        private SpoutOutputCollector collector;
        private int at;

        @Override
        public void open(Map conf, TopologyContext context, SpoutOutputCollector collector) {
            this.collector = collector;
        }

        @Override
        public void nextTuple() {
            if (at == count) {
                return;
            }
            if (at == warm) {
                beganCpu = cpu();
                beganNanos = System.nanoTime();
            }
            Values values = new Values(events.get(3 * at), events.get(3 * at + 1), events.get(3 * at + 2));
            collector.emit(values, (long) at);
            at++;
        }

        @Override
        public void declareOutputFields(OutputFieldsDeclarer declarer) {
            declarer.declare(new Fields("ts", "sensor", "value"));
        }
    }

    static final class Sum extends BaseWindowedBolt {
        private long sum;
        private boolean ended;

        @Override
        public void prepare(Map conf, TopologyContext context, OutputCollector collector) {}

        @Override
        public void execute(TupleWindow window) {
            long newest = 0;
            for (Tuple tuple : window.getNew()) {
                sum += tuple.getLongByField("value");
                newest = Math.max(newest, tuple.getLongByField("ts"));
            }
            for (Tuple tuple : window.getExpired()) {
                sum -= tuple.getLongByField("value");
            }
            long end = (newest + slide - 1) / slide * slide; // Storm 1.2 does not tell a window's end
            sums.computeIfAbsent(end, key -> new AtomicLong()).addAndGet(sum);
            if (end >= last && !ended) {
                ended = true;
                over.countDown();
            }
        }
    }

    private SlidingSum() {}
}
